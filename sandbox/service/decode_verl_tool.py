"""Bodies of verl-tool's dialect: what policies wrote, to programs. Pure, and in time linear in the text."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

from rocstar.sandbox._native import MOST_SHELL_BYTES
from rocstar.sandbox.child.bash import BASH
from rocstar.sandbox.service.borrowed import fault, raise_all, read_body
from rocstar.sandbox.service.decode import check_text
from rocstar.sandbox.service.errors import Refused
from rocstar.sandbox.service.mistakes import Mistake
from rocstar.sandbox.service.models import models_of
from rocstar.sandbox.service.packed import Chosen, packed, places
from rocstar.sandbox.service.rules import Rules
from rocstar.sandbox.types import ExecRequest

WALL_S = 10.0
"""As that server has it."""

LANGUAGES = {"python": "", "py": "", "bash": BASH, "sh": BASH}
"""Marks of a block, and the flavour that it asks for: none, where the program's imports choose."""

_OPENINGS = (
    (re.compile(r"<(python|bash)>"), "</{}>"),
    (re.compile(r"```\n?(python|py|bash|sh)\b"), "```"),
)
"""What begins a block of each kind, and what ends it, with the language in the braces."""

_INPUT = ("```input\n", "\n```")


@dataclass(frozen=True, slots=True)
class Step:
    """What is made of an action. request: None where it has no program that runs here, and `invalid` says
    why. marks: what comes before and after the text of its observation."""

    request: ExecRequest | None
    marks: tuple[str, str]
    is_last: bool
    invalid: str = "no program was found"


@dataclass(frozen=True, slots=True)
class Steps:
    """What is made of each action. `runnable`: the places of those that have a program."""

    steps: Sequence[Step]
    runnable: Sequence[int]

    def sent(self) -> Sequence[ExecRequest]:
        """The programs."""
        return Chosen(self.runnable, lambda index: cast(ExecRequest, self.steps[index].request))


def decode_actions(body: bytes, rules: Rules, owner: str) -> Steps:
    """What is made of each action. Raises Refused for what is wrong with any."""
    actions = read_body(body, models_of(rules).actions)
    number = len(actions.trajectory_ids)
    given = {
        "actions": actions.actions,
        "finish": actions.finish,
        "is_last_step": actions.is_last_step,
        "extra_fields": actions.extra_fields,
    }
    raise_all(
        [
            fault(f"there are {len(values)} for {number} trajectory_ids; give one for each", name)
            for name, values in given.items()
            if values is not None and len(values) != number
        ]
    )
    finish = actions.finish or [False] * number
    extras = actions.extra_fields or [{}] * number
    steps: list[Step] = []
    found: list[Mistake] = []
    for index, (action, is_last, extra) in enumerate(zip(actions.actions, finish, extras, strict=True)):
        try:
            steps.append(_step(action, is_last, extra.get("stdin"), rules, owner))
        except Refused as refusal:
            found.append(fault(str(refusal), refusal.field, index))
    raise_all(found)
    return Steps(packed(steps), places(steps, lambda step: step.request is not None))


def _step(action: str, is_last: bool, stdin: object, rules: Rules, owner: str) -> Step:
    """Raises Refused for what is no text, or too much of it."""
    check_text(action, "actions")
    marks = marks_of(action)
    language, code = ("", "") if is_last else program_of(action)
    flavour = LANGUAGES.get(language, "") or rules.choose(code)
    if not code or flavour not in rules.flavours:
        return Step(None, marks, is_last)
    if flavour == BASH and len(code.encode()) > MOST_SHELL_BYTES:  # one among many: the others run
        return Step(None, marks, is_last, f"a bash program of more than {MOST_SHELL_BYTES} bytes is not run")
    between = input_of(action)
    text = between if between is not None else stdin if isinstance(stdin, str) else ""
    check_text(text, "extra_fields")
    wall_s = min(WALL_S, rules.max_wall_s)
    limits = replace(rules.default_limits, wall_s=wall_s, cpu_s=int(WALL_S) + 1)
    request = ExecRequest(code=code, stdin=text, flavour=flavour, limits=limits, owner=owner)
    return Step(request, marks, is_last)


def program_of(action: str) -> tuple[str, str]:
    """The language and the text of the blocks of an action, all those of the first one's language together;
    empty for an action without any."""
    for opening, closing in _OPENINGS:
        if blocks := list(_blocks(action, opening, closing)):
            language = blocks[0][0]
            texts = (text.strip() for name, text in blocks if LANGUAGES[name] == LANGUAGES[language])
            return language, "\n".join(texts)
    return "", ""


def _blocks(action: str, opening: re.Pattern[str], closing: str) -> Iterator[tuple[str, str]]:
    """Language and text of each block that is closed. An end that is not found is not looked for again:
    thousands of blocks that are only begun would take that many times the whole text."""
    unclosed: set[str] = set()
    behind = 0
    for found in opening.finditer(action):
        end_mark = closing.format(found[1])
        if found.start() < behind or end_mark in unclosed:
            continue
        end = action.find(end_mark, found.end())
        if end < 0:
            unclosed.add(end_mark)
            continue
        yield found[1], action[found.end() : end]
        behind = end + len(end_mark)


def input_of(action: str) -> str | None:
    """The text of an action's first block of input; None without one."""
    _, begun, rest = action.partition(_INPUT[0])
    text, ended, _ = rest.partition(_INPUT[1])
    return text.strip() if begun and ended else None


def marks_of(action: str) -> tuple[str, str]:
    """The marks that an observation has by those that the action itself uses."""
    if "```output" in action or "```python" in action:
        return ("\n```result\n" if action.count("```") % 2 == 0 else "\n"), "\n```\n"
    if "</tool_call>" in action:
        return "\n<tool_response>\n```result\n", "\n```\n</tool_response>\n"
    if action.rstrip(" \n").endswith("<result>"):
        return "\n", "\n</result>\n"
    return "\n<result>\n", "\n</result>\n"

"""The trajectories of the report: readable, and unable to act."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from rocstar.engine.chat.toolcalls import parse_tool_calls
from rocstar.engine.record.reading import Verdict, to_record
from rocstar.engine.tools.jupyter import JUPYTER_SCHEMA
from rocstar.engine.tools.python import PYTHON_SCHEMA
from rocstar.engine.types import (
    ToolResult,
)
from rocstar.train.record.report.trajectories import trajectory_html
from tests.fakes.scripted_policy import ByteTokenizer
from tests.fakes.trajectories import FakeTurn, make_trajectory

MakeRecord = Callable[..., dict[str, Any]]


def attacked(value: Any, attack: str) -> Any:
    """The same record with every text of a model, a tool or a data set replaced by an attack."""
    if isinstance(value, dict):
        return {key: attacked(item, attack) for key, item in value.items()}
    if isinstance(value, list):
        return [attacked(item, attack) for item in value]
    return f"{value}{attack}<tool_call>{attack}" if isinstance(value, str) else value


@pytest.mark.parametrize("reward", [1.0, 0.0, None])
def test_what_a_model_wrote_cannot_act(
    reward: float | None, record: MakeRecord, tags_of: Any, attack: str
) -> None:
    hostile = attacked(record(3, 1, reward=reward), attack)
    hostile["turns"][0]["calls"][0]["malformed"] = attack
    hostile["turns"][1]["calls"][0]["arguments"] = {attack: attack, "b": 2}
    html = trajectory_html(hostile)
    tags = tags_of(html)
    assert not {"script", "img"} & {tag for tag, _ in tags.found}
    assert not [a for _, attributes in tags.found for a in attributes if a.startswith("on")]
    assert attack in tags.text, "inert, and still readable"


def test_a_trajectory_shows_why_and_how(record: MakeRecord, tags_of: Any) -> None:
    text = tags_of(trajectory_html(record(5, 1, reason="dropped_positive"))).text
    for part in (
        "Dropped by RoC",
        "tool errors 0.50 + answer format 0.00",
        "NameError",
        "gcd(84, 36) * undefined",
    ):
        assert part in text
    assert text.count("print(12)") == 1, "the program of a call, once"
    lost = tags_of(trajectory_html(record(5, 1, reason="failed", reward=None))).text
    assert "no reward" in lost
    assert "sandbox_lost: supervisor died" in lost


def test_undecodable_unfinished_and_unmatched_calls_are_shown(record: MakeRecord, tags_of: Any) -> None:
    call = {
        "name": None,
        "arguments": None,
        "malformed": "not JSON",
        "status": "malformed_call",
        "is_error": True,
        "result": "Bad",
    }
    other = {
        "name": "python",
        "arguments": {"code": "1", "lang": "py"},
        "malformed": None,
        "status": "ok",
        "is_error": False,
        "result": "",
    }
    turns = [
        {"text": "a<tool_call>{oops", "finish": "length", "calls": [call, other]},
        {"text": "b<tool_call>never run</tool_call>", "finish": "stop", "calls": []},
    ]
    text = tags_of(
        trajectory_html(
            record(1, 0, turns=turns, segments=[], decision={"kept": False, "reason": "other_bucket"})
        )
    ).text
    for part in (
        "{oops",
        "malformed_call: not JSON",
        "lang",
        "py",
        "cut here",
        "never run",
        "Bucket: other_bucket",
    ):
        assert part in text


def test_long_texts_are_clipped(record: MakeRecord) -> None:
    html = trajectory_html(record(1, 0, text="x" * 50_000))
    assert len(html) < 60_000
    assert "[30000 more characters]" in html


PROGRAM = "import sys\nfor line in sys.stdin:\n    print('<b>', line)"


def recorded(text: str) -> dict[str, Any]:
    """The record of a trajectory of one turn that wrote `text`, with its calls parsed as a rollout does."""
    tokenizer, calls = ByteTokenizer(), parse_tool_calls(text)
    result = ToolResult(status="ok", is_error=False, text="7")
    ids = tokenizer.encode(text)
    turn = FakeTurn(ids=ids, text=text, calls=calls, results=(result,) * len(calls))
    trajectory = make_trajectory(turn, prompt=())
    verdict = Verdict(bucket="kept", penalty_error=0.0, penalty_format=0.0, advantage=1.0)
    return to_record(trajectory, verdict, stage="rl", num_answers=1, decode=tokenizer.decode)


def call_of(html: str, tags_of: Any) -> str:
    """What a reader sees of the first call: the text of its box, without the tokens below."""
    html = str(html)
    start = html.index('<div class="call')
    return str(tags_of(html[start : html.index('<div class="result">', start)] + "</div>").text)


@pytest.mark.parametrize("schema", [PYTHON_SCHEMA, JUPYTER_SCHEMA], ids=["python", "jupyter"])
def test_a_program_is_shown_as_a_program_whatever_else_a_tool_takes(schema: Any, tags_of: Any) -> None:
    """Each schema that a policy can be given, every argument of it filled, in either order."""
    function = schema["function"]
    names = list(function["parameters"]["properties"])
    for order in (names, names[::-1]):
        arguments = {name: PROGRAM if name == "code" else f"the\n{name} given" for name in order}
        body = json.dumps({"name": function["name"], "arguments": arguments})
        html = trajectory_html(recorded(f"<tool_call>{body}</tool_call>"))
        shown = call_of(html, tags_of)
        assert shown.startswith(f"calls {function['name']}{PROGRAM}"), "line by line, and first"
        for name in set(names) - {"code"}:
            assert shown.endswith(f"{name}the\n{name} given"), "with its name, below"


def test_arguments_that_are_no_text_or_empty_are_shown_too(tags_of: Any) -> None:
    body = json.dumps({"name": "other", "arguments": {"input": "", "code": "1", "limits": {"wall_s": 2}}})
    shown = call_of(trajectory_html(recorded(f"<tool_call>{body}</tool_call>")), tags_of)
    assert shown == 'calls other1input: emptylimits{\n "wall_s": 2\n}'


@pytest.mark.parametrize(
    "raw", ['{"name": "x", "arguments": "print(1)"}', '{"name": "x", "arguments": {"code": "a']
)
def test_arguments_that_cannot_be_parsed_are_shown_as_they_were_written(raw: str, tags_of: Any) -> None:
    shown = call_of(trajectory_html(recorded(f"<tool_call>{raw}</tool_call>")), tags_of)
    assert shown == f"calls undecodable call<tool_call>{raw}</tool_call>"


def test_a_mention_that_is_not_closed_does_not_take_the_next_call_along(tags_of: Any) -> None:
    good = '<tool_call>{"name": "x", "arguments": {"code": "2"}}</tool_call>'
    shown = call_of(trajectory_html(recorded(f"<tool_call>torn {good}")), tags_of)
    assert shown == "calls x2"

"""A conversation from the user's side: what was said, to be gone on with, taken back, saved and loaded."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocstar.engine.serve.parts import Part, Said, texts_of
from rocstar.engine.serve.terminal.remote import AnswerEnd, ChoiceEnd, Told

_BOXED = re.compile(r"\\boxed\{")


class TalkError(Exception):
    """A command that cannot be done; the message says why."""


@dataclass(slots=True)
class HeardAnswer:
    """One answer as it was heard, whole or not.

    Attributes:
        parts: what happened, of all choices.
        reasons: why each choice ended; those that were stopped have none.
        ids: the tokens of each choice, of a conversation that goes on by them.
        end: what came last; None of one that was stopped.
    """

    parts: list[Part] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)
    ids: dict[int, Sequence[int]] = field(default_factory=dict)
    end: AnswerEnd | None = None

    def hear(self, told: Told) -> None:
        """One more event."""
        if isinstance(told, ChoiceEnd):
            self.reasons[told.choice] = told.reason
            self.ids[told.choice] = told.ids
        elif isinstance(told, AnswerEnd):
            self.end = told
        else:
            self.parts.append(told)

    def text(self, choice: int = 0) -> str:
        """What a choice says."""
        return texts_of(self.parts, choice)["content"]

    def thought(self, choice: int = 0) -> str:
        """What a choice thinks."""
        return texts_of(self.parts, choice)["reasoning_content"]

    def events(self, choice: int = 0) -> list[dict[str, Any]]:
        """Its calls and their results."""
        return [p.event() for p in self.parts if not isinstance(p, Said) and p.choice == choice]

    def elected(self) -> int:
        """The choice that goes on: the first of those with the most frequent answer."""
        if len(self.reasons) < 2:
            return 0
        best = votes([self.text(k) for k in sorted(self.reasons)])[0][0]
        return next(k for k in sorted(self.reasons) if final_answer(self.text(k)) == best)

    def as_json(self, prompt: str | None) -> dict[str, Any]:
        """All of it, for a program."""
        choices: list[dict[str, Any]] = [
            {
                "content": self.text(k),
                "reasoning_content": self.thought(k),
                "server_tool_events": self.events(k),
                "finish_reason": reason,
            }
            for k, reason in sorted(self.reasons.items())
        ]
        end = self.end or AnswerEnd(None, {}, {})
        told: dict[str, Any] = {"prompt": prompt, **(choices[self.elected()] if choices else {})}
        if len(choices) > 1:
            told |= {"choices": choices, "votes": dict(votes([c["content"] for c in choices]))}
        return told | {"id": end.id, "usage": dict(end.usage), **{k: v for k, v in end.facts.items()}}


@dataclass(slots=True)
class Talk:
    """Invariant: behind the system's message, if there is one, the user and the assistant take turns; with
    `ids` the next answer follows exactly these tokens, none of them made of text again.

    Attributes:
        messages: what was said, as text.
        answers: those that were heard here.
        ids: the tokens of all that was said; None where the endpoint makes them of the messages.
    """

    messages: list[dict[str, Any]] = field(default_factory=list)
    answers: list[HeardAnswer] = field(default_factory=list)
    ids: list[int] | None = None
    _former_ids: list[list[int]] = field(default_factory=list)

    @property
    def system(self) -> str:
        """What the assistant is told first; empty if nothing."""
        first = self.messages[0] if self.messages else {}
        return str(first["content"]) if first.get("role") == "system" else ""

    def instruct(self, text: str) -> None:
        """Set the system's message; an empty text takes it away. TalkError where tokens were said already."""
        if self.ids is not None:
            raise TalkError("what this talk began with cannot be changed; /new begins another")
        rest = self.messages[1:] if self.system else self.messages
        self.messages = [{"role": "system", "content": text}, *rest] if text else rest

    def asking(self, question: str | None) -> list[dict[str, Any]]:
        """The messages of a question, which is not part of the talk yet; None: it is the policy's turn."""
        asked = [] if question is None else [{"role": "user", "content": question}]
        return asked if self.ids is not None else [*self.messages, *asked]

    def add(self, question: str | None, answer: HeardAnswer, choice: int = 0) -> bool:
        """A question with its answer, whole or not; whether it is part of the talk: of one that goes on by
        tokens an answer that was stopped is not, for nobody knows its last ones."""
        if self.ids is not None:
            if answer.end is None or not answer.end.prompt_ids:
                return False
            self._former_ids.append(self.ids)
            self.ids = [*answer.end.prompt_ids, *answer.ids.get(choice, ())]
        if question is not None:
            self.messages = [*self.messages, {"role": "user", "content": question}]
        self.messages = [*self.messages, {"role": "assistant", "content": answer.text(choice)}]
        self.answers.append(answer)
        return True

    def undo(self) -> str:
        """Take back the last question with its answer; the question. TalkError if there is none."""
        is_own = self.ids is None or bool(self._former_ids)
        if len(self.messages) < 2 or self.messages[-1]["role"] != "assistant" or not is_own:
            raise TalkError("there is nothing to take back")
        question = str(self.messages[-2]["content"])
        self.messages = self.messages[:-2]
        if self._former_ids:
            self.ids = self._former_ids.pop()
        if self.answers:
            self.answers.pop()
        return question

    def save(self, path: Path) -> None:
        """Write the talk as JSON. TalkError if that cannot be done."""
        told: dict[str, Any] = {
            "messages": self.messages,
            "ids": [a.end.id for a in self.answers if a.end is not None],
        }
        if self.ids is not None:
            told["token_ids"] = self.ids
        try:
            path.write_text(json.dumps(told, indent=1) + "\n", encoding="ascii")
        except OSError as error:
            raise TalkError(f"{str(path)!r} cannot be written: {error.strerror}") from None

    @staticmethod
    def load(path: Path) -> Talk:
        """A talk that was saved. TalkError for a file that is none."""
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            said = [{"role": m["role"], "content": m["content"]} for m in told["messages"]]
            ids = None if told.get("token_ids") is None else [int(token) for token in told["token_ids"]]
        except OSError as error:
            raise TalkError(f"{str(path)!r} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError):
            raise TalkError(f"{str(path)!r} holds no talk; give a file that /save wrote") from None
        talk = Talk(messages=said, ids=ids)
        turns = [m["role"] for m in said][1 if talk.system else 0 :]
        if turns != ["user", "assistant"] * (len(turns) // 2) or any(
            not isinstance(m["content"], str) for m in said
        ):
            raise TalkError(f"{str(path)!r} holds no talk in turns; give a file that /save wrote")
        return talk


def final_answer(text: str) -> str:
    """What a text answers: the last boxed value, else its last line."""
    begins = list(_BOXED.finditer(text))
    if begins:
        at, depth = begins[-1].end(), 1
        for end in range(at, len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if not depth:
                return text[at:end].strip()
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def votes(texts: Sequence[str]) -> list[tuple[str, int]]:
    """The answers of several samples with how many gave them, the most frequent first."""
    return Counter(final_answer(text) for text in texts).most_common()

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
        end: what came last; None of one that was stopped.
    """

    parts: list[Part] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)
    end: AnswerEnd | None = None

    def hear(self, told: Told) -> None:
        """One more event."""
        if isinstance(told, ChoiceEnd):
            self.reasons[told.choice] = told.reason
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

    def as_json(self, prompt: str) -> dict[str, Any]:
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
    """Invariant: behind the system's message, if there is one, the user and the assistant take turns."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    answers: list[HeardAnswer] = field(default_factory=list)

    @property
    def system(self) -> str:
        """What the assistant is told first; empty if nothing."""
        first = self.messages[0] if self.messages else {}
        return str(first["content"]) if first.get("role") == "system" else ""

    def instruct(self, text: str) -> None:
        """Set the system's message; an empty text takes it away."""
        rest = self.messages[1:] if self.system else self.messages
        self.messages = [{"role": "system", "content": text}, *rest] if text else rest

    def asking(self, question: str) -> list[dict[str, Any]]:
        """The messages of a question, which is not part of the talk yet."""
        return [*self.messages, {"role": "user", "content": question}]

    def add(self, question: str, answer: HeardAnswer, choice: int = 0) -> None:
        """A question with its answer, whole or not."""
        text = answer.text(choice)
        self.messages = [*self.asking(question), {"role": "assistant", "content": text}]
        self.answers.append(answer)

    def undo(self) -> str:
        """Take back the last question with its answer; the question. TalkError if there is none."""
        if len(self.messages) < 2 or self.messages[-1]["role"] != "assistant":
            raise TalkError("there is nothing to take back")
        question = str(self.messages[-2]["content"])
        self.messages = self.messages[:-2]
        if self.answers:
            self.answers.pop()
        return question

    def save(self, path: Path) -> None:
        """Write the talk as JSON. TalkError if that cannot be done."""
        told = {"messages": self.messages, "ids": [a.end.id for a in self.answers if a.end is not None]}
        try:
            path.write_text(json.dumps(told, indent=1) + "\n", encoding="ascii")
        except OSError as error:
            raise TalkError(f"{str(path)!r} cannot be written: {error.strerror}") from None

    @staticmethod
    def load(path: Path) -> Talk:
        """A talk that was saved. TalkError for a file that is none."""
        try:
            messages = json.loads(path.read_text(encoding="utf-8"))["messages"]
            said = [{"role": m["role"], "content": m["content"]} for m in messages]
        except OSError as error:
            raise TalkError(f"{str(path)!r} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError):
            raise TalkError(f"{str(path)!r} holds no talk; give a file that /save wrote") from None
        talk = Talk(messages=said)
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

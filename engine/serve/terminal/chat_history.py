"""The messages of a chat: continue, undo, save and load."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from rocstar.engine.chat.toolcalls import final_answer
from rocstar.engine.gateway.stream_parts import Part, TextPart, join_texts
from rocstar.engine.serve.terminal.client import AnswerEnd, ChoiceEnd, StreamEvent, TerminalError


@dataclass(slots=True)
class ReceivedAnswer:
    """A received response, complete or stopped.

    Attributes:
        parts: the parts of all choices.
        reasons: the finish reason of each choice; a stopped one has none.
        ids: the token ids of each choice, if the chat continues from tokens.
        end: the last event, or None if the response was stopped.
    """

    parts: list[Part] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)
    ids: dict[int, Sequence[int]] = field(default_factory=dict)
    end: AnswerEnd | None = None

    def receive(self, event: StreamEvent) -> None:
        """Add an event."""
        if isinstance(event, ChoiceEnd):
            self.reasons[event.choice] = event.reason
            self.ids[event.choice] = event.ids
        elif isinstance(event, AnswerEnd):
            self.end = event
        else:
            self.parts.append(event)

    def text(self, choice: int = 0) -> str:
        """Return the content of a choice."""
        return join_texts(self.parts, choice)["content"]

    def best_choice(self) -> int:
        """Return the choice to continue from: the first with the most frequent answer."""
        if len(self.reasons) < 2:
            return 0
        best = count_votes([self.text(k) for k in sorted(self.reasons)])[0][0]
        return next(k for k in sorted(self.reasons) if final_answer(self.text(k)) == best)

    def as_json(self, prompt: str | None) -> dict[str, Any]:
        """Return the response as JSON."""
        choices: list[dict[str, Any]] = [
            {
                "content": self.text(k),
                "reasoning_content": join_texts(self.parts, k)["reasoning_content"],
                "server_tool_events": [
                    msgspec.to_builtins(part)
                    for part in self.parts
                    if not isinstance(part, TextPart) and part.choice == k
                ],
                "finish_reason": reason,
            }
            for k, reason in sorted(self.reasons.items())
        ]
        end = self.end or AnswerEnd()
        payload: dict[str, Any] = {"prompt": prompt, **(choices[self.best_choice()] if choices else {})}
        if len(choices) > 1:
            payload |= {"choices": choices, "votes": dict(count_votes([c["content"] for c in choices]))}
        return payload | {"id": end.id, "usage": dict(end.usage), **end.facts}


@dataclass(slots=True)
class ChatHistory:
    """Invariant: after an optional system message, user and assistant messages alternate; with `ids` the next
    response continues from exactly these tokens, which are never re-tokenized.

        Attributes:
            messages: the messages as text.
            answers: the responses received in this process.
            ids: the tokens of the chat so far, or None if the endpoint tokenizes the messages.
    """

    messages: list[dict[str, Any]] = field(default_factory=list)
    answers: list[ReceivedAnswer] = field(default_factory=list)
    ids: list[int] | None = None
    _former_ids: list[list[int]] = field(default_factory=list)

    @property
    def system(self) -> str:
        """The text of the system message, or ""."""
        first = self.messages[0] if self.messages else {}
        return str(first["content"]) if first.get("role") == "system" else ""

    def instruct(self, text: str) -> None:
        """Set or remove the system message. TerminalError if the chat continues from tokens."""
        if self.ids is not None:
            raise TerminalError("the start of this chat cannot be changed; /new starts another")
        rest = self.messages[1:] if self.system else self.messages
        self.messages = [{"role": "system", "content": text}, *rest] if text else rest

    def request_messages(self, question: str | None) -> list[dict[str, Any]]:
        """Return the messages of a question without adding it. None: the policy continues."""
        request = [] if question is None else [{"role": "user", "content": question}]
        return request if self.ids is not None else [*self.messages, *request]

    def add(self, question: str | None, answer: ReceivedAnswer, choice: int = 0) -> bool:
        """Add a question and its response, complete or stopped. Return False without adding it if the chat
        continues from tokens and the response was stopped, because its last tokens are unknown."""
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
        """Take back the last question with its answer; the question. TerminalError if there is none."""
        is_own = self.ids is None or bool(self._former_ids)
        if len(self.messages) < 2 or self.messages[-1]["role"] != "assistant" or not is_own:
            raise TerminalError("there is nothing to undo")
        question = str(self.messages[-2]["content"])
        self.messages = self.messages[:-2]
        if self._former_ids:
            self.ids = self._former_ids.pop()
        if self.answers:
            self.answers.pop()
        return question

    def save(self, path: Path) -> None:
        """Write the chat as JSON. Raises TerminalError."""
        payload: dict[str, Any] = {
            "messages": self.messages,
            "ids": [a.end.id for a in self.answers if a.end is not None],
        }
        if self.ids is not None:
            payload["token_ids"] = self.ids
        try:
            path.write_text(json.dumps(payload, indent=1) + "\n", encoding="ascii")
        except OSError as error:
            raise TerminalError(f"{str(path)!r} cannot be written: {error.strerror}") from None

    @staticmethod
    def load(path: Path) -> ChatHistory:
        """Load a saved chat. Raises TerminalError for another file."""
        try:
            payload = json.loads(path.read_text(encoding="utf-8"))
            said = [{"role": m["role"], "content": m["content"]} for m in payload["messages"]]
            ids = None if payload.get("token_ids") is None else [int(token) for token in payload["token_ids"]]
        except OSError as error:
            raise TerminalError(f"{str(path)!r} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError):
            raise TerminalError(f"{str(path)!r} is not a saved chat; give a file of /save") from None
        history = ChatHistory(messages=said, ids=ids)
        turns = [m["role"] for m in said][1 if history.system else 0 :]
        if turns != ["user", "assistant"] * (len(turns) // 2) or any(not isinstance(m["content"], str) for m in said):
            raise TerminalError(f"{str(path)!r} has no alternating turns; give a file of /save")
        return history


def count_votes(texts: Sequence[str]) -> list[tuple[str, int]]:
    """The answers of several samples with how many gave them, the most frequent first."""
    return Counter(final_answer(text) for text in texts).most_common()

"""Check that a chat template shows all text of messages: dropped text would be lost silently.

Two questions, because a short text may occur in a prompt by chance, and a template may change what it does
not leave out:

    the form   marks in place of every text: all of them occur, in order?      asked once per form
    the text   the messages as they are: their texts occur, in order?          asked of every conversation
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rocstar.engine.chat.boundaries import ChatError, Message, Rendering, Tool

_TEXTS = ("reasoning_content", "content")


class ShownCheck:
    """One template with its tools. Remembers the forms that it found shown."""

    def __init__(self, render: Rendering, tools: Sequence[Tool]) -> None:
        self._render, self._tools = render, list(tools)
        self._shown: set[str] = set()

    def check_prompt(self, messages: Sequence[Message]) -> None:
        """Check messages that the policy is to answer. ChatError says which message is not shown."""
        self.check_form(messages, generation_prompt=True)
        text = self._render(messages, self._tools, gen=True)
        _find_all(messages, text, "not as it is written")

    def shown_form(self, messages: Sequence[Message], thought: tuple[str, str]) -> list[Message]:
        """The messages in the first form that the template shows, for the policy to answer: as they are; each
        `reasoning_content` within `thought`'s tags before the content; without those of earlier turns, or of
        all turns, where the template itself shows none there. ChatError if it shows no form.
        """
        last = max((k for k, message in enumerate(messages) if message["role"] == "user"), default=0)
        forms = [
            list(messages),
            [_folded(message, *thought) for message in messages],
            [_without_thought(message) if k < last else message for k, message in enumerate(messages)],
            [_without_thought(message) for message in messages],
        ]
        problem: ChatError | None = None
        for form in forms if any(message.get(_TEXTS[0]) for message in messages) else forms[:1]:
            try:
                self.check_prompt(form)
            except ChatError as error:
                problem = problem or error
            else:
                return form
        assert problem is not None
        raise problem

    def first_prompt(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None) -> str:
        """The text in front of the assistant's first turn; none where it speaks first."""
        roles = [message["role"] for message in messages]
        end = roles.index("assistant") if "assistant" in roles else len(roles)
        shown = self._tools if tools is None else tools
        return self._render(messages[:end], shown, gen=True) if end else ""

    def check_finished(self, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        """Check form and texts of a finished conversation. ChatError names the dropped text."""
        self.check_form(messages, tools)
        _find_all(messages, self._render(messages, tools), "not as it is written")

    def check_form(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None = None, *, generation_prompt: bool = False
    ) -> None:
        """Check the form of messages: of a finished conversation, unless `generation_prompt`. ChatError names
        the first text that is not shown. tools: None for those of the template."""
        tools = self._tools if tools is None else tools
        forms = [[m["role"], [key for key in _TEXTS if m.get(key)], len(m.get("tool_calls") or ())] for m in messages]
        form = json.dumps([forms, bool(tools), generation_prompt])
        if form not in self._shown:
            marked = [_marked(message, k) for k, message in enumerate(messages)]
            text = self._render(marked, tools, generation_prompt)
            _find_all(marked, text, "not at all, or not in its place")
            self._shown.add(form)


def _folded(message: Message, begin: str, end: str) -> Message:
    thought = message.get("reasoning_content")
    if not thought:
        return message
    content = f"{begin}\n{thought}\n{end}\n\n{message.get('content') or ''}"
    return {**_without_thought(message), "content": content.rstrip()}


def _without_thought(message: Message) -> Message:
    return {key: value for key, value in message.items() if key != "reasoning_content"}


def _marked(message: Message, k: int) -> dict[str, Any]:
    """The message with a text of its own for each of its texts; no mark contains another."""
    marked = dict(message)
    for key in _TEXTS:
        if message.get(key):
            marked[key] = f"(the {key} of message {k})"
    if message.get("tool_calls"):
        marked["tool_calls"] = [
            {**call, "function": {"name": f"name-{k}-{j}-", "arguments": {"code": f"argument-{k}-{j}-"}}}
            for j, call in enumerate(message["tool_calls"])
        ]
    return marked


def _find_all(messages: Sequence[Message], text: str, how: str) -> None:
    """Raise ChatError unless the texts of the messages occur in `text` in order."""
    at = 0
    for number, message in enumerate(messages, 1):
        for forms in _text_forms(message):
            ends = [begin + len(form) for form in forms if (begin := text.find(form, at)) >= 0]
            if not ends:
                shown = repr(forms[0])
                raise ChatError(
                    f"the chat template shows message {number} of {len(messages)} ({message['role']}) {how}: "
                    f"{shown if len(shown) <= 80 else shown[:77] + '...'}"
                )
            at = min(ends)


def _text_forms(message: Message) -> Iterator[list[str]]:
    """Each text of a message in the forms in which a template may write it."""
    for key in _TEXTS:
        if isinstance(message.get(key), str):
            yield [message[key].strip()]  # templates trim contents
    for call in message.get("tool_calls") or ():
        function = call["function"]
        yield [function["name"]]
        for item in _leaves(function["arguments"]):
            if not isinstance(item, str):
                yield [json.dumps(item), str(item)]
                continue
            # or inside a JSON string, with and without characters beyond ASCII
            quoted = [json.dumps(item, ensure_ascii=ascii_only) for ascii_only in (False, True)]
            yield [item, *(text[1:-1] for text in quoted)]


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value

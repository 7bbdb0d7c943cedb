"""`rocstar chat` while it runs: a line of input, an answer, a command.

    tty    prompt_toolkit ──line──> command | question ──> RemoteChat.ask ──> Screen
    else   --prompt, or what is piped in ──> answers on standard output, with --json a line each

Who waits: the person for the answer, which Ctrl-C ends and keeps, or for a command, which it ends; the
program for the person, without end.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rocstar.engine.serve.parts import Said
from rocstar.engine.serve.terminal.keys import held_keys, unseen_keys
from rocstar.engine.serve.terminal.remote import ChoiceEnd, RemoteChat, RemoteError, Told
from rocstar.engine.serve.terminal.screen import Screen
from rocstar.engine.serve.terminal.talk import HeardAnswer, Talk, TalkError, votes

HELP = """\
/n K         ask K times at once and vote; /n 1 streams again
/system TEXT what the assistant is told first; without TEXT, show it
/tools       the last answer's calls with their whole results
/undo        take back the last question and its answer
/save FILE   write the talk; /load FILE reads it
/good /bad   tell the server what you think of the last answer
/new         begin anew
/quit        leave (so do Ctrl-D, and Ctrl-C twice)
Enter sends; Alt-Enter begins a new line; pasted lines are one message."""


class Lines(Protocol):
    """Where a person writes."""

    async def next(self) -> str:
        """What was written. EOFError at the end; KeyboardInterrupt for Ctrl-C."""
        ...

    def interrupted(self) -> bool:
        """Whether Ctrl-C was pressed behind what `next` gave; what else was typed begins the next."""
        ...


@dataclass(slots=True)
class ChatSession:
    """A person's conversation with an endpoint.

    Invariants: what an answer said before it was stopped is kept, and is what the next question follows.
    Ctrl-C behind a line ends what that line asked for, however soon it comes, and never the chat.
    """

    remote: RemoteChat
    screen: Screen
    talk: Talk = field(default_factory=Talk)
    num_choices: int = 1
    _doing: asyncio.Future[None] | None = None
    _lines: Lines | None = None

    async def run(self, lines: Lines) -> None:
        """Until the person leaves."""
        self._lines = lines
        with held_keys():
            while (line := await self._next(lines)) != "/quit":
                if line.startswith("/"):
                    await self._command(line)
                elif line:
                    await self.ask(line)

    async def _next(self, lines: Lines) -> str:
        """The next line; `/quit` for every way to leave."""
        is_warned = False
        while True:
            try:
                return (await lines.next()).strip()
            except EOFError:
                return "/quit"
            except KeyboardInterrupt:
                if is_warned:
                    return "/quit"
                is_warned = True
                self.screen.note("Ctrl-C once more leaves")

    async def ask(self, question: str | None) -> HeardAnswer:
        """Ask, and show the answer while it comes; Ctrl-C ends it. None: let the policy go on."""
        answer = HeardAnswer()
        if not await self._until_stopped(self._hear(question, answer)):
            self.screen.end("(stopped)")
        if (answer.parts or answer.end) and not self.talk.add(question, answer, answer.elected()):
            self.screen.note("(not kept: this talk goes on by its tokens, and the last of these are unknown)")
        return answer

    def stop(self) -> None:
        """End the answer that is being heard, of which what was heard is kept, or the command at work."""
        if self._doing is not None:
            self._doing.cancel()

    async def _until_stopped(self, work: Awaitable[None]) -> bool:
        """Whether the work came to its end; `stop`, and so Ctrl-C, ends it before."""
        doing = self._doing = asyncio.ensure_future(work)
        try:
            with _interrupting(self.stop), unseen_keys():
                if self._lines is not None and self._lines.interrupted():
                    self.stop()
                await asyncio.wait([doing])
        finally:
            self._doing = None
            doing.cancel()  # who waited for it was cancelled: nobody hears it any more
        if doing.cancelled():
            return False
        doing.result()
        return True

    async def _hear(self, question: str | None, answer: HeardAnswer) -> None:
        stream = self.remote.ask(
            self.talk.asking(question), num_choices=self.num_choices, prefix_ids=self.talk.ids
        )
        try:
            async with contextlib.aclosing(stream):
                async for told in stream:
                    answer.hear(told)
                    if self.num_choices == 1:
                        self.screen.show(told)
                    elif isinstance(told, ChoiceEnd):
                        self.screen.mark()
        except RemoteError as error:
            self.screen.end(f"error: {error}")
            return
        if self.num_choices > 1:
            self._show_votes(answer)
        self.screen.end(_ending(answer))

    def _show_votes(self, answer: HeardAnswer) -> None:
        told = votes([answer.text(k) for k in sorted(answer.reasons)])
        for text, count in told:
            self.screen.note(f"{count} of {len(answer.reasons)}: {text or '(nothing)'}")

    async def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        commands: dict[str, Callable[[str], Awaitable[None] | None]] = {
            "/help": lambda _: self.screen.note(HELP),
            "/n": self._set_choices,
            "/system": self._set_system,
            "/tools": self._show_tools,
            "/undo": lambda _: self.screen.note(f"taken back: {self.talk.undo()[:200]}"),
            "/save": lambda path: self.talk.save(_path(path)),
            "/load": self._load,
            "/good": lambda _: self._thumb("up"),
            "/bad": lambda _: self._thumb("down"),
            "/new": self._begin_anew,
        }
        try:
            if name not in commands:
                raise TalkError(f"{name} is no command; /help lists them")
            work = commands[name](rest.strip())
            if work is not None and not await self._until_stopped(work):
                self.screen.note("(stopped)")
            if name == "/save":
                self.screen.note(f"saved in {rest.strip()}")
        except (TalkError, RemoteError) as error:
            self.screen.note(f"error: {error}")

    def _set_choices(self, text: str) -> None:
        if not re.fullmatch("[0-9]{1,3}", text) or not 1 <= int(text) <= 128:
            raise TalkError(f"/n {text[:20]}: give a number from 1 to 128")
        self.num_choices = int(text)

    def _set_system(self, text: str) -> None:
        if text:
            self.talk.instruct(text)
        self.screen.note(f"system: {self.talk.system or '(none)'}")

    def _show_tools(self, _: str) -> None:
        answer = self.talk.answers[-1] if self.talk.answers else HeardAnswer()
        whole = Screen(self.screen.console, shows_all=True)
        chosen = answer.elected()
        told = [part for part in answer.parts if not isinstance(part, Said) and part.choice == chosen]
        for part in told:
            whole.show(part)
        if not told:
            self.screen.note("no tool was called")

    def _load(self, path: str) -> None:
        self.talk = Talk.load(_path(path))
        for message in self.talk.messages:
            self.screen.note(f"{message['role']}: {message['content']}")

    async def _thumb(self, thumb: str) -> None:
        end = self.talk.answers[-1].end if self.talk.answers else None
        if end is None or end.id is None:
            raise TalkError("there is no finished answer to judge")
        answer = self.talk.answers[-1]
        await self.remote.thumb(end.id, answer.elected(), thumb)
        self.screen.note(f"noted: {thumb}")

    def _begin_anew(self, _: str) -> None:
        system = "" if self.talk.ids is not None else self.talk.system
        self.talk = Talk()
        self.talk.instruct(system)


def _path(text: str) -> Path:
    if not text:
        raise TalkError("give a file behind the command")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise TalkError(f"{text}: there is nobody of that name here; give the folder itself") from None


def _ending(answer: HeardAnswer) -> str:
    """What a person should know of how the answer ended; empty if it is whole."""
    if any(reason == "length" for reason in answer.reasons.values()):
        return "(cut: the answer reached its limit of tokens or turns)"
    return "" if answer.parts else "(no answer)"


@contextlib.contextmanager
def _interrupting(stop: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C calls `stop` inside the block, where this thread takes signals."""
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGINT, stop)
    except (RuntimeError, ValueError, NotImplementedError):  # another thread than the main one
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def answer_all(
    remote: RemoteChat,
    prompts: Sequence[str | None],
    *,
    num_choices: int,
    as_json: bool,
    screen: Screen,
    talk: Talk | None = None,
) -> bool:
    """Answer prompts that nobody types, each by itself behind the `talk`; whether all were answered. None
    among them lets the policy go on."""
    good, talk = True, talk or Talk()
    for prompt in prompts:
        session = ChatSession(
            remote, Screen(screen.console), talk=copy.deepcopy(talk), num_choices=num_choices
        )
        if not as_json:
            good &= bool((await session.ask(prompt)).end)
            continue
        answer = HeardAnswer()
        try:
            async for told in _closing(remote, talk, prompt, num_choices):
                answer.hear(told)
            print(json.dumps(answer.as_json(prompt)), flush=True)
        except RemoteError as error:
            print(json.dumps({"prompt": prompt, "error": str(error)}), flush=True)
            good = False
    return good


async def _closing(
    remote: RemoteChat, talk: Talk, prompt: str | None, num_choices: int
) -> AsyncIterator[Told]:
    stream = remote.ask(talk.asking(prompt), num_choices=num_choices, prefix_ids=talk.ids)
    async with contextlib.aclosing(stream):
        async for told in stream:
            yield told

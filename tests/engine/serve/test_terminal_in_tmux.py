"""`rocstar chat` in a terminal of 40 columns: keys are pressed, and the screen is compared.

The endpoint runs in this process with a script; the chat is a process in tmux, without colours.
"""

import json
import re
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.fakes.scripted_policy import Reply

from ...tmux import Terminal, TmuxServer, tmux_server
from ...warm_python import warm
from .conftest import Client, Serving, SlowTool, call, ready_tool, scripted

ROCSTAR = "import sys; from rocstar.train.cli import main; sys.exit(main())"
LONG = "a comment that is longer than the forty columns of this terminal"
THINKS = [
    f"<think>Two numbers, which are added: that is done by a program.</think>{call(f'print(2+2)  # {LONG}')}",
    "So it is, as everybody would have expected of it, \\boxed{4}",
]
TOLD = f"""\
you> 2+2?
Two numbers, which are added: that is done by a program.
> calc
print(2+2)  # {LONG}
| 4
So it is, as everybody would have expected of it, \\boxed{{4}}
you>"""


@pytest.fixture(scope="module")
def tmux() -> Iterator[TmuxServer]:
    with tmux_server() as server:
        yield server


@asynccontextmanager
async def chatting(
    tmux: TmuxServer, client: Client, *, columns: int = 40, cold: bool = False, **environment: str | None
) -> AsyncIterator[Terminal]:
    """Start a chat and wait for its prompt; at the end of the block leave it by Ctrl-C twice.

    cold: start a new interpreter, which reads its environment, instead of a fork of a warm one.
    """
    rocstar = [sys.executable, "-c", ROCSTAR] if cold else [str(warm().executable.with_name("rocstar"))]
    command = [*rocstar, "chat", f"{client.endpoint.url}/v1"]
    payload = {"NO_COLOR": "1", "ROCSTAR_CHAT_HISTORY": "", "LC_ALL": "C.UTF-8"} | environment
    terminal = await tmux.open(command, columns=columns, environment=payload)
    await terminal.ending("/help lists commands\nyou>")
    yield terminal
    await terminal.ending("you>")  # before, Ctrl-C would be of the answer
    await terminal.type("C-c")
    await terminal.ending("Ctrl-C once more leaves\nyou>")
    await terminal.type("C-c")
    assert await terminal.ended() == 0


def request(client: Client) -> list[str]:
    """What the policy read, request by request."""
    return [client.agent.chat.decode(request.ids) for request in client.agent.inference.requests]


async def test_what_happens_stands_there_when_it_happens(tmux: TmuxServer, serving: Serving) -> None:
    tool = SlowTool()
    async with serving(scripted(THINKS), tool=tool) as client, chatting(tmux, client) as terminal:
        await terminal.type("2+2?", "Enter")
        before = await terminal.ending(LONG)
        tool.gate.set()
        after = await terminal.ending("\\boxed{4}\nyou>")
        lines = await terminal.lines()
    assert TOLD.startswith(before[before.index("you>") :]) and "| 4" not in before
    assert after[after.index("you>") :] == TOLD
    assert max(map(len, lines)) <= 40 and "".join(lines).replace(" ", "") == re.sub(r"\s", "", after)


async def test_an_answer_comes_word_by_word_at_any_width_until_ctrl_c(tmux: TmuxServer, serving: Serving) -> None:
    endless = scripted([Reply(text="word ", stops=False)])
    limits = {"max_response_tokens": 100_000}
    async with (
        serving(endless, token_s=0.001, limits=limits, max_context=200_000) as client,
        chatting(tmux, client) as terminal,
    ):
        await terminal.type("Go on.", "Enter")
        for times, columns in ((20, 25), (60, 70), (90, 40)):
            await terminal.showing("word", times=times)
            await terminal.resize(columns, 24)
        await terminal.type("typed meanwhile")
        shown = await terminal.showing("word", times=120)
        await terminal.type("C-c")
        stopped = await terminal.ending("(stopped)\nyou> typed meanwhile")
        await client.conversations._idle.wait()
        await terminal.type("Enter")
        await terminal.showing("you> typed meanwhile\nword word")
        await terminal.type("C-c")
        await terminal.showing("(stopped)", times=2)
    assert "typed" not in shown
    said = re.search(r"you> Go on\.\n(.*)\n\(stopped\)", stopped)
    assert said and re.fullmatch(r"(word )+(w|wo|wor|word)?", said[1] + " " * said[1].endswith("d"))
    assert "word word" in request(client)[-1] and "typed meanwhile" in request(client)[-1]


async def test_ctrl_c_ends_a_command_and_not_the_chat(tmux: TmuxServer, serving: Serving) -> None:
    """A thumb waits for the disk, where the server has much to write."""
    gate = threading.Event()
    async with serving(scripted(["4"]), keeps=True) as client, chatting(tmux, client) as terminal:
        await terminal.type("2+2?", "Enter")
        await terminal.ending("4\nyou>")
        await client.conversations._idle.wait()
        assert client.conversations.store is not None
        client.conversations.store._thread.submit(gate.wait)
        try:
            await terminal.type("/good", "Enter")
            await terminal.ending("you> /good")
            await terminal.type("C-c")
            await terminal.ending("you> /good\n(stopped)\nyou>")
            await terminal.type("/good", "Enter", "C-c")  # before anybody can have seen the Enter
            await terminal.ending("(stopped)\nyou> /good\n(stopped)\nyou>")
            await terminal.type("/good", "Enter", "/go", "C-c", "od")
            await terminal.showing("(stopped)", times=3)
        finally:
            gate.set()
        await terminal.type("Enter")
        await terminal.ending("(stopped)\nyou> /good\nnoted: up\nyou>")


async def test_what_was_asked_comes_back_and_pasted_lines_are_one_message(
    tmux: TmuxServer, serving: Serving, tmp_path: Path
) -> None:
    pasted = "\n".join(f"line {k}" for k in range(200))
    store = {"ROCSTAR_CHAT_HISTORY": str(tmp_path / "state" / "history")}
    async with serving(scripted(["yes"])) as client:
        async with chatting(tmux, client, **store) as terminal:
            await terminal.paste(pasted)
            await terminal.showing("line 199")
            await terminal.type("Enter")
            await terminal.ending("yes\nyou>")
            await terminal.type("First,", "M-Enter", "then.", "Enter")
            await terminal.showing("yes", times=2)
        async with chatting(tmux, client, **store) as terminal:
            await terminal.type("Up")
            await terminal.ending("you> First,\nthen.")
            await terminal.type("Enter")
            await terminal.ending("yes\nyou>")
    assert [pasted in read for read in request(client)] == [True, True, False]
    assert "First,\nthen." in request(client)[1] and "First,\nthen." in request(client)[2]


@pytest.mark.parametrize("is_ascii", [False, True], ids=["UTF-8 in the C locale", "ASCII"])
async def test_a_terminal_that_can_do_nothing(tmux: TmuxServer, serving: Serving, is_ascii: bool) -> None:
    payload = {"TERM": "dumb", "LC_ALL": "C", "NO_COLOR": None}
    if is_ascii:
        payload |= {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    replies = [call("print('é → 年')"), "é → 年 \\boxed{4}"]
    async with (
        serving(scripted(replies), tool=ready_tool("é → 年")) as client,
        chatting(tmux, client, cold=is_ascii, **payload) as terminal,
    ):
        await terminal.type("2+2?", "Enter")
        text = await terminal.ending("\\boxed{4}\nyou>")
    letters = "? ? ?" if is_ascii else "é → 年"
    expected = f"you> 2+2?\n> calc\nprint('{letters}')\n| {letters}\n{letters} \\boxed{{4}}\nyou>"
    assert text[text.index("you>") :] == expected


async def test_without_a_person(tmux: TmuxServer, serving: Serving) -> None:
    """One question, and two that are piped in."""
    async with serving(scripted(THINKS)) as client:
        chat = f"{warm().executable.with_name('rocstar')} chat {client.endpoint.url}/v1"
        once = await tmux.open(["/bin/sh", "-c", f"{chat} --prompt 2+2?"], columns=40)
        assert await once.ended() == 0
        shown = await once.text()
        piped = await tmux.open(["/bin/sh", "-c", f"printf '2+2?\\n3+1?\\n' | {chat} --json"], columns=40)
        assert await piped.ended() == 0
        lines = (await piped.text()).splitlines()
    assert shown[: shown.rindex("\\boxed{4}")] == TOLD[TOLD.index("\n") + 1 : TOLD.rindex("\\boxed{4}")]
    answers = [json.loads(line) for line in lines if line.startswith("{")]
    assert [one["prompt"] for one in answers] == ["2+2?", "3+1?"]
    assert all(one["content"].endswith("\\boxed{4}") for one in answers)

"""The terminal client: its output, its commands, and stops."""

import asyncio
import io
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rocstar.engine.chat.toolcalls import final_answer
from rocstar.engine.gateway.stream_parts import TextPart, ToolCallPart, ToolResultPart
from rocstar.engine.serve.terminal.chat_history import ChatHistory, count_votes
from rocstar.engine.serve.terminal.client import ChatClient, TerminalError
from rocstar.engine.serve.terminal.screen import Screen
from rocstar.engine.serve.terminal.session import ChatSession, answer_all
from tests.fakes.scripted_policy import Reply

from .conftest import TOKENIZER, Client, Serving, SlowTool, call, scripted

THINKS = ["<think>Add.</think>" + call("print(2+2)"), "So \\boxed{4}"]


def screen(width: int = 40) -> tuple[Screen, io.StringIO]:
    out = io.StringIO()
    return Screen(Console(file=out, width=width, no_color=True, highlight=False)), out


@asynccontextmanager
async def chatting(client: Client, **fields: Any) -> AsyncIterator[tuple[ChatSession, io.StringIO]]:
    shown, out = screen()
    async with ChatClient(url=f"{client.endpoint.url}/v1", fields=fields) as client:
        yield ChatSession(client, shown), out


class Typed:
    """Implements `Lines` from a list; an exception stands for a key."""

    def __init__(self, lines: Sequence[str | type[BaseException]]) -> None:
        self._lines = list(lines)

    async def next(self) -> str:
        line = self._lines.pop(0) if self._lines else EOFError
        if isinstance(line, str):
            return line
        raise line

    def interrupted(self) -> bool:
        return False


async def test_a_person_sees_thought_code_result_and_answer(serving: Serving) -> None:
    async with serving(scripted(THINKS)) as client, chatting(client) as (session, out):
        await session.run(Typed(["2+2?", "/tools"]))
    assert out.getvalue().startswith("Add.\n> calc\nprint(2+2)") and "| 4\nSo \\boxed{4}\n" in out.getvalue()
    assert out.getvalue().count("| 4") == 2
    assert [m["content"] for m in session.history.messages] == ["2+2?", "So \\boxed{4}"]


async def test_what_is_stopped_is_kept_and_its_tool_is_over(serving: Serving) -> None:
    tool = SlowTool()
    replies = ["First. " + call("1"), "Second."]
    async with serving(scripted(replies), tool=tool) as client, chatting(client) as (session, out):
        seen, show = asyncio.Event(), session.screen.show

        def noting(payload: Any) -> None:
            show(payload)
            if isinstance(payload, ToolCallPart):
                seen.set()

        session.screen.show = noting  # type: ignore[method-assign]
        asking = asyncio.ensure_future(session.ask("2+2?"))
        await seen.wait()
        session.stop()
        await asking
        await client.conversations._idle.wait()
        assert tool.noted == ["cancelled"]
        tool.gate.set()
        await session.run(Typed(["And now?", "/undo", "/undo", "/undo"]))
        prompts = [client.agent.chat.decode(request.ids) for request in client.agent.inference.requests]
    assert any("First." in prompt and "And now?" in prompt for prompt in prompts)
    assert "(stopped)" in out.getvalue() and "taken back: And now?" in out.getvalue()
    assert "nothing to undo" in out.getvalue() and not session.history.messages


async def test_several_samples_vote(serving: Serving) -> None:
    texts = ["\\boxed{5}", "\\boxed{4}", "it is \\boxed{4}"]
    script = lambda request: texts[int(request.request_id[-1])]  # noqa: E731
    async with serving(script, keeps=True) as client, chatting(client) as (session, out):
        await session.run(Typed(["/n 3", "2+2?", "/good", "/n 0"]))
    assert "...\n2 of 3: 4\n1 of 3: 5" in out.getvalue() and "noted: up" in out.getvalue()
    assert session.history.messages[-1]["content"] == "\\boxed{4}"
    assert "give a number from 1 to 128" in out.getvalue()


async def test_a_talk_is_saved_and_loaded(serving: Serving, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    async with serving(scripted(["é"])) as client, chatting(client) as (session, out):
        await session.run(Typed(["/system Be brief.", "2+2?", f"/save {path}", "/new", f"/load {path}", "/nope"]))
        saved = session.history.messages
        wrong = ["/load nowhere", "/save ~nobody.here/x", "/save /nowhere/talk", "/n " + "9" * 5000, "/bad"]
        await session.run(Typed([*wrong, "/help", "/system", "/quit", "never"]))
    assert saved == session.history.messages == json.loads(path.read_text())["messages"]
    assert [m["role"] for m in saved] == ["system", "user", "assistant"]
    shown = re.sub(r"\s+", " ", out.getvalue())
    assert f"saved in {path}" in shown and "system: Be brief. user: 2+2? assistant: é" in shown
    assert "/nope is not a command" in shown and "'nowhere' cannot be read" in shown
    assert "no such user" in shown and "'/nowhere/talk' cannot be written: No such file" in shown
    assert "no finished answer" in shown and "Alt-Enter" in shown


async def test_a_talk_that_goes_on_by_its_tokens_keeps_every_one(serving: Serving, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    async with serving(scripted(["ab", "cd"])) as client, chatting(client) as (session, out):
        chat, policy = client.agent.chat, client.agent.inference
        prompt = chat.prompt_ids("2+2?")
        session.history = ChatHistory(messages=[{"role": "user", "content": "2+2?"}], ids=prompt)
        await session.ask(None)
        first = [*prompt, *TOKENIZER.encode("ab"), chat.stop_id]
        assert session.history.ids == first and list(policy.requests[0].ids) == prompt
        await session.run(Typed(["/system x", "More?", f"/save {path}", "/undo", "/undo", "/undo", f"/load {path}"]))
        second = [*first, *chat.user_suffix_ids("More?")]
        assert list(policy.requests[1].ids) == second
        assert session.history.ids == json.loads(path.read_text())["token_ids"] != first
        assert [m["content"] for m in session.history.messages] == ["2+2?", "ab", "More?", "ab"]
        await session.run(Typed(["/new", "/undo"]))
        assert session.history.ids is None
    assert "the start of this chat cannot be changed" in out.getvalue()
    assert out.getvalue().count("nothing to undo") == 2


async def test_of_a_talk_by_tokens_what_is_stopped_is_no_part(serving: Serving) -> None:
    tool = SlowTool()
    async with serving(scripted(["a " + call("1")]), tool=tool) as client, chatting(client) as (session, out):
        prompt = client.agent.chat.prompt_ids("2+2?")
        session.history = ChatHistory(messages=[{"role": "user", "content": "2+2?"}], ids=prompt)
        asking = asyncio.ensure_future(session.ask(None))
        await tool.began.wait()
        session.stop()
        await asking
        await client.conversations._idle.wait()
    assert session.history.ids == prompt and len(session.history.messages) == 1
    assert "not kept: this chat continues from tokens" in out.getvalue()


async def test_ctrl_c_twice_leaves(serving: Serving) -> None:
    async with serving(scripted(["4"])) as client, chatting(client) as (session, out):
        await session.run(Typed([KeyboardInterrupt, "2+2?", KeyboardInterrupt, KeyboardInterrupt, "never"]))
    assert out.getvalue().count("once more leaves") == 2 and len(session.history.messages) == 2


async def test_an_endpoint_that_refuses_is_told(serving: Serving) -> None:
    async with serving(scripted([Reply(text="a" * 50, stops=False)]), max_context=60) as client:
        async with chatting(client) as (session, out):
            await session.run(Typed(["2+2?" * 20]))
            assert "error: the prompt has" in out.getvalue() and not session.history.messages
        async with ChatClient(url="http://127.0.0.1:1/v1") as nobody:
            with pytest.raises(TerminalError, match="/v1: "):
                await anext(nobody.ask([]))


@asynccontextmanager
async def answering(*pieces: bytes, status: int = 200, ends: bool = True) -> AsyncIterator[str]:
    """Run an endpoint that answers any request with these pieces."""
    head = b"HTTP/1.1 %d X\r\nContent-Type: text/event-stream\r\n\r\n" % status
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"".join([head, *pieces] if pieces else []))
        if not ends:
            await over.wait()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        finally:
            over.set()


@pytest.mark.parametrize(
    ("event", "payload"),
    [
        (b'{"error": "out of memory"}', "out of memory"),
        (b'{"error": {"message": "no room"}}', "no room"),
        (b'{"error": null, "choices": [7]}', "unknown event"),
        (b'{"choices": [{"index": null}]}', "unknown event"),
        (b'{"choices": 7}', "unknown event"),
        (b'{"server_tool_event": {"type": "tool_use", "name": 7}}', "unknown event"),
        (b'{"choices": [{"index": Infinity}]}', "unknown event"),
        (b'{"server_tool_event": {"type": "tool_use", "arguments": 5}}', "unknown event"),
        (b"7", "not an object"),
        (b"{", "invalid JSON"),
        (None, "ended its stream early"),
    ],
)
async def test_what_is_no_answer_is_one_message(event: bytes | None, payload: str) -> None:
    piece = b"" if event is None else b"data: " + event + b"\n\n"
    async with answering(piece) as url, ChatClient(url=url) as client:
        shown, out = screen()
        await ChatSession(client, shown).ask("2+2?")
    assert payload in out.getvalue().replace("\n", " ")


async def test_an_endpoint_that_says_nothing_is_left() -> None:
    """Without a response, with an error response that does not end, with a stream that does not continue."""
    for pieces, status, begin_s, expected in (
        ((), 200, 0.05, "did not begin"),
        ((b"no",), 500, 0.05, "did not begin"),
        ((b": ping\n",), 200, 60.0, "sent nothing"),
    ):
        async with (
            answering(*pieces, status=status, ends=False) as url,
            ChatClient(url=url, begin_s=begin_s, silence_s=0.05) as client,
        ):
            with pytest.raises(TerminalError, match=expected):
                await anext(client.ask([]))
            if status == 500:
                with pytest.raises(TerminalError, match=expected):
                    await client.thumb("i", 0, "up")


async def test_who_is_cancelled_asks_no_more(serving: Serving) -> None:
    tool = SlowTool()
    async with serving(scripted([call("1")]), tool=tool) as client, chatting(client) as (session, _):
        asking = asyncio.ensure_future(session.ask("2+2?"))
        await tool.began.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        hearing = [task for task in asyncio.all_tasks() if "ChatSession._receive_answer" in repr(task)]
        try:
            assert all(task.cancelling() for task in hearing)
            await client.conversations._idle.wait()
        finally:
            tool.gate.set()
    assert tool.noted == ["cancelled"]


async def test_prompts_that_nobody_types(serving: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(scripted(THINKS)) as client, chatting(client) as (session, out):
        client, shown = session.client, session.screen
        assert await answer_all(client, ["2+2?"], num_choices=1, as_json=False, screen=shown)
        assert await answer_all(client, ["a", "b"], num_choices=2, as_json=True, screen=shown)
        assert await answer_all(client, ["c"], num_choices=1, as_json=True, screen=shown)
    assert out.getvalue().endswith("So \\boxed{4}\n")
    first, second, single = map(json.loads, capsys.readouterr().out.splitlines())
    assert (single["content"], single["finish_reason"]) == ("So \\boxed{4}", "stop")
    assert "seed" in single and "choices" not in single
    assert (first["prompt"], second["prompt"], first["content"]) == ("a", "b", "So \\boxed{4}")
    assert first["votes"] == {"4": 2} and first["usage"]["turns"] == 4 and len(first["choices"]) == 2


def test_nothing_that_a_policy_writes_steers_the_terminal() -> None:
    shown, out = screen()
    evil = "\x1b]0;owned\x07\x1b[2J"
    for payload in (
        TextPart(0, "content", evil),
        ToolCallPart(choice=0, id="1", name=evil, arguments={"code": evil, "input": evil}),
        ToolResultPart(choice=0, id="1", name="f", status="ok", is_error=False, text=evil),
    ):
        shown.show(payload)
    shown.end(evil)
    assert "\x1b" not in out.getvalue() and "\x07" not in out.getvalue()


def test_code_keeps_its_lines_and_has_the_colours_of_the_terminal() -> None:
    """A broken line cannot be run; a colour outside the terminal's palette may equal its background."""
    out = io.StringIO()
    console = Console(file=out, width=40, force_terminal=True, color_system="truecolor", highlight=False)
    code = "if True:\n    print('é')  # a comment that is longer than its terminal is wide\n\n"
    Screen(console).show(ToolCallPart(choice=0, id="1", name="python", arguments={"code": code}))
    plain = re.sub(r"\x1b\[[\d;]*m", "", out.getvalue())
    assert plain == f"> python\n{code.rstrip()}\n"
    assert "\x1b[" in out.getvalue() and not re.search(r"[34]8;[25];", out.getvalue())


async def test_what_goes_wrong_here_is_not_an_end_of_the_answer(serving: Serving) -> None:
    async with serving(scripted(["4"])) as client, chatting(client) as (session, _):

        def fails(payload: Any) -> None:
            raise BrokenPipeError("nobody reads it")

        session.screen.show = fails  # type: ignore[method-assign]
        with pytest.raises(BrokenPipeError):
            await session.ask("2+2?")


def test_long_results_are_cut_until_they_are_asked_for() -> None:
    shown, out = screen()
    lines = "\n".join(map(str, range(30)))
    shown.show(ToolResultPart(choice=0, id="1", name="f", status="error", is_error=True, text=lines))
    assert "| 11\n| ... 18 more lines: /tools\n(error)\n" in out.getvalue()


def test_answers_are_compared_by_what_they_box() -> None:
    assert final_answer("x \\boxed{1} so \\boxed{\\frac{1}{2}}") == "\\frac{1}{2}"
    assert final_answer("one\ntwo \n") == "two" and final_answer("") == ""
    assert count_votes(["\\boxed{1}", "2", "it is \\boxed{1}"]) == [("1", 2), ("2", 1)]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"messages": [{"role": "assistant", "content": "a"}]}', '{"messages": 1}']
)
def test_a_file_without_a_talk_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "t").write_text(text)
    with pytest.raises(TerminalError, match="give a file of /save"):
        ChatHistory.load(tmp_path / "t")

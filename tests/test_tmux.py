"""Terminals for tests: what is typed and shown there, and how a command ended."""

from .tmux import tmux_server


async def test_a_terminal_shows_what_is_typed_and_tells_its_end() -> None:
    with tmux_server() as server:
        told = {"SAID": "hello", "HOME": None}
        command = ["/bin/sh", "-c", 'read line; echo "$SAID ${HOME-homeless} $line"; exit 3']
        terminal = await server.open(command, columns=20, environment=told)
        await terminal.type("a line that is wider", "Enter")
        assert await terminal.ended() == 3
        assert "hello homeless a line that is wider" in await terminal.text()
        assert "hello homeless a lin" in await terminal.lines()

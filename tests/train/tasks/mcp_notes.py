"""A server of the Model Context Protocol over its pipes, or at a port of its own with the argument http."""

import os
import sys

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("notes")
notes: list[str] = []


@server.tool()
def note(text: str) -> str:
    """Keep a note, and show all so far."""
    if text == "bad":
        raise ToolError("no such note")
    if text == "die":
        os._exit(3)
    notes.append(text)
    return ", ".join(notes)


@server.tool()
def count() -> int:
    """Count the notes."""
    return len(notes)


if __name__ == "__main__":
    server.run(*(("streamable-http",) if sys.argv[1:] else ()), **({"port": int(sys.argv[1])} if sys.argv[1:] else {}))  # type: ignore[call-overload]

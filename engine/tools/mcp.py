"""Tools of a server of the Model Context Protocol: a command over its pipes, or a URL.

    McpServer.tools -> a Tool for each listed name      a trajectory's first call -> one connection for all of them

State of a server is state of a connection, so each trajectory has its own. A result that the server marks as an
error is an error that the policy reads; a server that does not answer fails the trajectory. Needs the extra `mcp`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from mcp import Client, MCPError, StdioServerParameters
from mcp_types import INVALID_PARAMS

from rocstar.engine.tools.tool import BadArguments, Tool, ToolContext, ToolError, ToolFailure, ToolOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """A server: what starts it or where it is, and the seconds of each call of it."""

    target: StdioServerParameters | str
    timeout_s: float

    def tools(self) -> list[McpTool]:
        """Connect, and return the listed tools. ToolFailure if the server does not list them."""
        with ThreadPoolExecutor(1) as asker:  # a loop may run in this thread
            return asker.submit(asyncio.run, self._listed()).result()

    async def _listed(self) -> list[McpTool]:
        connection = McpConnection(self)
        try:
            async with asyncio.timeout(self.timeout_s):
                await connection.open()
                return [McpTool(self, one) for one in (await connection.client.list_tools()).tools]
        except TimeoutError:
            raise ToolFailure(f"it does not answer within {self.timeout_s:g} s") from None
        except MCPError as error:
            raise ToolFailure(f"it does not list its tools: {error}") from None
        finally:
            await connection.close()


class McpConnection:
    """One connection, kept by a task: the package's scopes end in the task that began them."""

    client: Client

    def __init__(self, server: McpServer) -> None:
        self._server, self._done = server, asyncio.Event()
        self._opened = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect. ToolFailure if that fails."""
        self._task = asyncio.create_task(self._keep())
        await self._opened

    async def _keep(self) -> None:
        try:
            async with Client(self._server.target) as self.client:
                self._opened.set_result(None)
                await self._done.wait()
        except Exception as error:  # the package raises groups of what its transports raise
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            if not self._opened.done():
                self._opened.set_exception(ToolFailure(f"it cannot be connected: {error}"))

    async def close(self) -> None:
        """End the connection, and a server that it started."""
        self._done.set()
        if self._task is not None:
            if not self._opened.done():
                self._task.cancel()
            await asyncio.wait({self._task})


class McpTool(Tool):
    """One tool of a server, as the server describes it."""

    parallel = False  # a server may answer in any order, and later calls see the changes of earlier ones

    def __init__(self, server: McpServer, listed: Any) -> None:
        self.name, self.description, self.parameters = listed.name, listed.description or "", listed.input_schema
        self.timeout_s, self.shared, self._server = server.timeout_s, f"mcp {id(server)}", server

    async def open(self, context: ToolContext) -> McpConnection:
        connection = McpConnection(self._server)
        try:
            await connection.open()
        except BaseException:  # cancelled, too: the session is not opened
            await connection.close()
            raise
        return connection

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Return the texts of the result."""
        try:
            result = await context.session.client.call_tool(self.name, dict(arguments))
        except MCPError as error:
            if error.code == INVALID_PARAMS:
                raise BadArguments(error.message) from error
            raise ToolFailure(f"{self.name}: {error.message}") from error
        text = "\n".join(part.text for part in result.content if part.type == "text")
        if result.is_error:
            raise ToolError(text)
        return ToolOutput(text)

    async def close(self, session: McpConnection) -> None:
        await session.close()


def make_tools(
    *, command: Sequence[str] = (), url: str = "", env: Mapping[str, str] | None = None, timeout_s: float = 60.0
) -> list[McpTool]:
    """Return the tools of the server that `command` starts, with `env` beside PATH, HOME and the like, or at `url`.

    Raises:
        ValueError: neither or both of `command` and `url`, or values of another type.
        ToolFailure: the server does not list its tools.
    """
    texts = [url, *command, *(env or {}).values()] if isinstance(command, list | tuple) else [None]
    if bool(command) == bool(url) or not all(isinstance(text, str) for text in texts):
        raise ValueError("give command, a list of texts, or url, a text")
    program, *args = command or [""]
    env = None if env is None else dict(env)
    target = url or StdioServerParameters(command=program, args=args, env=env)
    return McpServer(target=target, timeout_s=timeout_s).tools()

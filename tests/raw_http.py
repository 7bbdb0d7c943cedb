"""Bytes on a connection, where a client of HTTP would send none such."""

import asyncio

from .patience import PATIENCE_S

NOT_HTTP = b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n"


async def answer_to(port: int, sent: bytes = NOT_HTTP) -> tuple[str, bytes]:
    """Return the status line and the body of the answer, after which the server closes the connection."""
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    return head.decode().split("\r\n")[0], body

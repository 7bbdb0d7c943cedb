"""Requests that are not HTTP, or that look like two, and bodies that are odd or no JSON, as bytes; and the answers of
a server to them."""

import asyncio
import re
from collections.abc import Iterator

from .patience import PATIENCE_S

HIDDEN = b'{"code": "hidden"}'
BODY = b'{"code": "open"}'
LAST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
"""Behind each of them, so that a connection ends however the server took what came before."""

NOT_HTTP = b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n"

LENGTHS: dict[str, tuple[bytes, bytes]] = {
    "two lengths": (b"Content-Length: 16\r\nContent-Length: 0", BODY),
    "two lengths, the other way": (b"Content-Length: 0\r\nContent-Length: 16", BODY),
    "a list": (b"Content-Length: 16, 16", BODY),
    "a plus": (b"Content-Length: +16", BODY),
    "a minus": (b"Content-Length: -16", BODY),
    "hexadecimal": (b"Content-Length: 0x10", BODY),
    "blank within": (b"Content-Length: 1 6", BODY),
    "other digits": ("Content-Length: \u0661\u0666".encode(), BODY),
    "underscore": (b"Content-Length: 1_6", BODY),
    "nothing": (b"Content-Length:", BODY),
    "more than 64 bits": (b"Content-Length: 18446744073709551632", BODY),
    "chunks and a length": (b"Transfer-Encoding: chunked\r\nContent-Length: 5", b"0\r\n\r\n"),
    "a length and chunks": (b"Content-Length: 5\r\nTransfer-Encoding: chunked", b"0\r\n\r\n"),
    "an unknown coding": (b"Transfer-Encoding: xchunked", b"0\r\n\r\n"),
    "chunked is not the last": (b"Transfer-Encoding: chunked, identity", b"0\r\n\r\n"),
    "chunked twice": (b"Transfer-Encoding: chunked, chunked", b"0\r\n\r\n"),
    "identity alone": (b"Transfer-Encoding: identity\r\nContent-Length: 16", BODY),
    "a vertical tab": (b"Transfer-Encoding: \x0bchunked\r\nContent-Length: 5", b"0\r\n\r\n"),
    "a quoted coding": (b'Transfer-Encoding: "chunked"\r\nContent-Length: 5', b"0\r\n\r\n"),
    "codings in two lines": (b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked", b"0\r\n\r\n"),
    "a blank before the colon": (b"Transfer-Encoding : chunked\r\nContent-Length: 5", b"0\r\n\r\n"),
    "a folded coding": (b"Transfer-Encoding:\r\n chunked\r\nContent-Length: 5", b"0\r\n\r\n"),
}
LINES: dict[str, bytes] = {
    "folded": b"POST %s HTTP/1.1\r\nHost: localhost\r\nX-A: b\r\n c\r\nContent-Length: 16\r\n\r\n",
    "folded by a tab": b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length:\r\n\t16\r\n\r\n",
    "folded at the start": b"POST %s HTTP/1.1\r\n Host: localhost\r\nContent-Length: 16\r\n\r\n",
    "NUL in a value": b"POST %s HTTP/1.1\r\nHost: localhost\r\nX-A: b\0c\r\nContent-Length: 16\r\n\r\n",
    "NUL in a name": b"POST %s HTTP/1.1\r\nHost: localhost\r\nX-\0A: b\r\nContent-Length: 16\r\n\r\n",
    "CR in a value": b"POST %s HTTP/1.1\r\nHost: localhost\r\nX-A: b\rc\r\nContent-Length: 16\r\n\r\n",
    "a blank before the colon": b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length : 16\r\n\r\n",
    "no colon": b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length 16\r\n\r\n",
    "no name": b"POST %s HTTP/1.1\r\nHost: localhost\r\n: 16\r\nContent-Length: 16\r\n\r\n",
    "bare line feeds": b"POST %s HTTP/1.1\nHost: localhost\nContent-Length: 16\n\n",
    "one bare line feed": b"POST %s HTTP/1.1\r\nHost: localhost\nContent-Length: 16\r\n\r\n",
    "no version": b"POST %s\r\nHost: localhost\r\nContent-Length: 16\r\n\r\n",
    "another version": b"POST %s HTTP/1.9\r\nHost: localhost\r\nContent-Length: 16\r\n\r\n",
    "a third version": b"POST %s HTTP/3.0\r\nHost: localhost\r\nContent-Length: 16\r\n\r\n",
    "no protocol": b"POST %s FTP/1.1\r\nHost: localhost\r\nContent-Length: 16\r\n\r\n",
    "blanks in the target": b"POST %s x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16\r\n\r\n",
    "a tab for a blank": b"POST\t%s\tHTTP/1.1\r\nHost: localhost\r\nContent-Length: 16\r\n\r\n",
    "high bytes in the target": b"POST %s\xff HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16\r\n\r\n",
    "NUL in the target": b"POST %s\0 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16\r\n\r\n",
    "no target": b"POST  HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16\r\n\r\n",
}
CHUNKS: dict[str, bytes] = {
    "17 digits": b"10000000000000010\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a minus": b"-1\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a plus": b"+10\r\n" + BODY + b"\r\n0\r\n\r\n",
    "hexadecimal": b"0x10\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a blank before": b" 10\r\n" + BODY + b"\r\n0\r\n\r\n",
    "underscore": b"1_0\r\n" + BODY + b"\r\n0\r\n\r\n",
    "nothing": b"\r\n" + BODY + b"\r\n0\r\n\r\n",
    "bare line feeds": b"10\n" + BODY + b"\n0\n\n",
    "no end of a chunk": b"10\r\n" + BODY + b"0\r\n\r\n",
    "another end of a chunk": b"10\r\n" + BODY + b"XX0\r\n\r\n",
    "a line feed in an extension": b"10;x=\n" + BODY + b"\r\n0\r\n\r\n",
    "an extension without end": b"10;" + b"x" * 200_000 + b"\r\n" + BODY + b"\r\n0\r\n\r\n",
    "trailers without end": b"0\r\n" + b"X-A: b\r\n" * 50_000 + b"\r\n",
    "a trailer of a length": b"10\r\n" + BODY + b"\r\n0\r\nContent-Length : 5\r\n\r\n",
}
JSON_VALUES: dict[str, bytes] = {
    "depth": b"[" * 5000 + b"]" * 5000,
    "depth of objects": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "a huge number": b"1" + b"0" * 5000,
    "a huge exponent": b"1e999999999",
    "a small exponent": b"1e-999999999",
    "NaN": b"NaN",
    "Infinity": b"-Infinity",
    "half a pair": b'"\\ud800"',
    "NUL": b'"\\u0000"',
    "escapes": b'"\\u001b]0;owned\\u0007"',
    "no UTF-8": b'"\xff\xfe"',
    "nothing": b"null",
    "true": b"true",
    "lists": b"[[[]],{}]",
    "minus": b"-1",
    "minus nothing": b"-0.0",
    "no sum": b"[-1, 9223372036854775808, 1e300]",
}


def json_forms(body: bytes, *fields: str) -> Iterator[tuple[str, bytes]]:
    """Named texts: each value alone and as each field of `body`, and what is almost an object of the first field."""
    for name, value in JSON_VALUES.items():
        yield name, value
        for field in fields:
            yield f"{name} as {field}", body % (field.encode(), value)
    text = fields[0]
    yield "much depth", b"[" * 1_000_000
    yield "nothing at all", b""
    yield "a mark", f'\ufeff{{"{text}": "x"}}'.encode()
    yield "UTF-16", f'{{"{text}": "x"}}'.encode("utf-16")
    yield "names twice", f'{{"{text}": "x", "{text}": 1, "{text}": "y"}}'.encode()
    yield "many names", b"{" + b",".join(b'"a%d": 1' % number for number in range(5000)) + b"}"
    yield "a name of escapes", b'{"\\u001b[2J\\ud800": 1}'
    yield "two values", f'{{"{text}": "x"}} {{"{text}": "y"}}'.encode()
    yield "no end", f'{{"{text}": "x'.encode()


def of_length(path: bytes, name: str) -> bytes:
    """A request of two lengths, and behind it one that is hidden where the wrong one is taken."""
    head, body = LENGTHS[name]
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n\r\n%s" % (path, head, body) + hidden(path)


def hidden(path: bytes) -> bytes:
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 18\r\n\r\n" % path + HIDDEN


def of_lines(path: bytes, name: str) -> bytes:
    return LINES[name].replace(b"%s", path) + BODY + hidden(path)


def of_chunks(path: bytes, name: str) -> bytes:
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" % path
    return head + CHUNKS[name] + hidden(path)


def of_target(path: bytes, method: bytes = b"POST", more: bytes = b"") -> bytes:
    return b"%s %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: 16\r\n\r\n%s" % (method, path, more, BODY)


def endless_headers() -> Iterator[bytes]:
    yield b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
    for number in range(20_000):
        yield b"".join(b"X-%d-%d: y\r\n" % (number, one) for one in range(100))


def endless_header() -> Iterator[bytes]:
    yield b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: "
    for _ in range(256):
        yield b"y" * 65_536


async def said(port: int, pieces: bytes | Iterator[bytes]) -> tuple[list[int], int]:
    """The statuses of one connection until it ends, and how many bytes were sent before that."""
    sent = 0
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        reading = asyncio.create_task(all_of(reader))
        try:
            for piece in [pieces] if isinstance(pieces, bytes) else pieces:
                writer.write(piece)
                await writer.drain()
                sent += len(piece)
        except ConnectionError:
            pass  # the server has ended it
        text = await reading
        writer.close()
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3})", text)], sent


async def all_of(reader: asyncio.StreamReader) -> bytes:
    text = b""
    try:
        while piece := await reader.read(65_536):
            text += piece
    except ConnectionError:
        pass
    return text


async def answer_to(port: int, sent: bytes = NOT_HTTP) -> tuple[str, bytes]:
    """Return the status line and the body of the answer, after which the server closes the connection."""
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    return head.decode().split("\r\n")[0], body

"""A result as a client of the protocol gets it: text for the model, pictures, files, and its fields."""

from base64 import b64encode
from collections.abc import Callable
from typing import Any

from mcp_types import (
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from rocstar.sandbox.types import Display, ExecResult, Status

MAX_TEXT_CHARS = 20_000
"""Of the text of an answer, which goes into a model's context."""

MAX_FIELD_CHARS = 2_000
"""Of a text among the fields of an answer: programs read these, and the text is in the content already."""

PICTURES = ("image/png", "image/jpeg")
"""What a model takes as a picture; other displays come as resources."""


def of_result(
    result: ExecResult, *, keep: Callable[[str], str] | None = None, ended: str = "", **more: str
) -> CallToolResult:
    """The result for a model: at most `MAX_TEXT_CHARS` of text, never an empty one.

    Args:
        result: of the program. An error, as contract 6 has it, is any status but ok.
        keep: stores a text that is too long and returns its URI.
        ended: why the session is gone, if the cell ended it.
        more: further fields, the session's id say.
    """
    parts = [result.stdout, "" if result.value is None else result.value, result.stderr]
    whole = "\n".join(part.rstrip("\n") for part in parts if part)
    notes = []
    if result.status not in (Status.OK, Status.ERROR):
        notes.append(f"[{result.status}]")
    elif result.status is Status.ERROR and not result.stderr:
        notes.append(f"[exit code {result.exit_code}]")
    if result.stdout_truncated or result.stderr_truncated:
        notes.append("[the program wrote more than is kept; the rest is lost]")
    if ended:
        notes.append(f"[the session is gone: {ended}; run a cell without `session` to open another]")
    text = "\n".join(part for part in (cut(whole, MAX_TEXT_CHARS), *notes) if part)
    content: list[ContentBlock] = [_of_display(number, one) for number, one in enumerate(result.displays)]
    content += [_of_file(name, data) for name, data in result.files.items()]
    if text.strip() or not content:
        content.insert(0, text_of(text if text.strip() else "[no output]"))
    if len(whole) > MAX_TEXT_CHARS and keep is not None:
        content.append(_link_to(keep(whole), len(whole)))
    fields: dict[str, Any] = {
        **more,
        **({"session_ended": ended} if ended else {}),
        "status": str(result.status),
        "exit_code": result.exit_code,
        "signal": result.signal,
        "stdout": cut(result.stdout, MAX_FIELD_CHARS),
        "stderr": cut(result.stderr, MAX_FIELD_CHARS),
        "value": None if result.value is None else cut(result.value, MAX_FIELD_CHARS),
        "truncated": result.stdout_truncated or result.stderr_truncated,
    }
    is_error = result.status is not Status.OK
    return CallToolResult(content=content, structured_content=fields, is_error=is_error)


def cut(text: str, most: int) -> str:
    """The text, or its head and tail with the number of characters between them that are left out."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def _link_to(uri: str, size: int) -> ResourceLink:
    about = f"the whole output, {size} characters, kept for a while"
    return ResourceLink(name="output", uri=uri, description=about, mime_type="text/plain", size=size)


def of_failure(why: str) -> CallToolResult:
    """No result: the sandbox failed, or the call asks for what cannot be."""
    return CallToolResult(content=[text_of(cut(why, MAX_TEXT_CHARS) or "it failed")], is_error=True)


def text_of(text: str) -> TextContent:
    """Not empty: providers of models refuse an empty text."""
    return TextContent(type="text", text=text)


def _of_display(number: int, one: Display) -> ContentBlock:
    if one.mime in PICTURES:
        return ImageContent(type="image", data=b64encode(one.data).decode(), mime_type=one.mime)
    text = cut(one.data.decode("utf-8", "replace"), MAX_TEXT_CHARS)
    uri = f"display:{number}"
    return EmbeddedResource(
        type="resource", resource=TextResourceContents(uri=uri, text=text, mime_type=one.mime)
    )


def _of_file(name: str, data: bytes) -> ContentBlock:
    blob = BlobResourceContents(
        uri=f"file:///{name.lstrip('/')}", blob=b64encode(data).decode(), mime_type="application/octet-stream"
    )
    return EmbeddedResource(type="resource", resource=blob)

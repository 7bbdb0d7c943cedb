"""A result as a client of the protocol gets it: text for the model, pictures, files, and its fields."""

from base64 import b64encode
from typing import Any

from mcp_types import (
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
)

from rocstar.sandbox.types import Display, ExecResult, Status

PICTURES = ("image/png", "image/jpeg")
"""What a model takes as a picture; other displays come as resources."""


def of_result(result: ExecResult, **more: str) -> CallToolResult:
    """`more`: further fields, the session's id say. An error, as contract 6 has it, is any status but ok."""
    parts = [result.stdout, "" if result.value is None else result.value, result.stderr]
    if result.status not in (Status.OK, Status.ERROR):
        parts.append(f"[{result.status}]")
    elif result.status is Status.ERROR and not result.stderr:
        parts.append(f"[exit code {result.exit_code}]")
    content: list[ContentBlock] = [text_of("\n".join(part.rstrip("\n") for part in parts if part))]
    content += [_of_display(number, one) for number, one in enumerate(result.displays)]
    content += [_of_file(name, data) for name, data in result.files.items()]
    fields: dict[str, Any] = {
        **more,
        "status": str(result.status),
        "exit_code": result.exit_code,
        "signal": result.signal,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "value": result.value,
        "truncated": result.stdout_truncated or result.stderr_truncated,
    }
    is_error = result.status is not Status.OK
    return CallToolResult(content=content, structured_content=fields, is_error=is_error)


def of_failure(why: str) -> CallToolResult:
    """No result: the sandbox failed, or the call asks for what cannot be."""
    return CallToolResult(content=[text_of(why)], is_error=True)


def text_of(text: str) -> TextContent:
    return TextContent(type="text", text=text)


def _of_display(number: int, one: Display) -> ContentBlock:
    if one.mime in PICTURES:
        return ImageContent(type="image", data=b64encode(one.data).decode(), mime_type=one.mime)
    text = one.data.decode("utf-8", "replace")
    uri = f"display:{number}"
    return EmbeddedResource(
        type="resource", resource=TextResourceContents(uri=uri, text=text, mime_type=one.mime)
    )


def _of_file(name: str, data: bytes) -> ContentBlock:
    blob = BlobResourceContents(
        uri=f"file:///{name}", blob=b64encode(data).decode(), mime_type="application/octet-stream"
    )
    return EmbeddedResource(type="resource", resource=blob)

"""The text of a tool result for the policy, and its length limit.

ExecResult -> result_text -> cut_middle -> tokens of the prompt
"""

from __future__ import annotations

import re
from typing import Literal

from rocstar.engine.chat.chat import Tokenizer
from rocstar.sandbox.types import ExecResult, Status

TextStyle = Literal["brief", "plain", "rstar2"]
CUT_MARKER = "...(truncated)..."
MAX_TOKEN_CHARS = 64
"""Characters per token beyond which a long result is cut before it is encoded."""

_WHY = {
    Status.TIMEOUT: "TimeoutError: the program exceeded its time limit",
    Status.MEMORY_LIMIT: "MemoryError: the program exceeded its memory limit",
    Status.OUTPUT_LIMIT: "OutputLimitError: the program printed too much",
    Status.DENIED: "PermissionError: the program used an operation that is not allowed",
}


def result_text(result: ExecResult, style: TextStyle) -> str:
    """Return the text for the policy. It has no wall time and no memory address, which differ between runs,
    except in the original's strings (`rstar2`).
    """
    if style == "rstar2":
        return _rstar2_text(result)
    return _ADDRESS.sub(" at 0x...", _text(result, style))


_ADDRESS = re.compile(r" at 0x[0-9a-f]{6,16}(?=>)")
"""An address as in `<function f at 0x7f1f77c37d40>`, with the text before it: a search for a pattern that
begins with literal characters is twenty times as fast; two MiB of output took 12 ms of the loop."""


def _text(result: ExecResult, style: TextStyle) -> str:
    if result.status is Status.OK:
        parts = [result.stdout.strip("\n"), result.value or ""]
        return "\n".join(part for part in parts if part) or "(no output)"
    lines = result.stderr.strip().splitlines() or [""]
    why = _WHY.get(result.status) or lines[-1].strip()
    if result.status is Status.SIGNALED:
        why = f"killed by signal {result.signal}"
    why = why or f"exit code {result.exit_code}"
    if style == "brief":
        return why
    detail = result.stderr.strip("\n") if result.status is Status.ERROR and result.stderr.strip() else why
    return "\n".join(part for part in (result.stdout.strip("\n"), detail) if part)


def _rstar2_text(result: ExecResult) -> str:
    """The released client's strings (its table of outcomes, execution time included)."""
    stdout = result.stdout + (f"{result.value}\n" if result.value is not None else "")
    stderr = _WARNING.sub(r"<string>:\1", result.stderr)
    lines = ["Tool call success"]
    if result.status is not Status.OK:
        reason = "worker_timeout" if result.status is Status.TIMEOUT else ""
        lines = ["Tool call failure", f"reason: {reason}"]
        is_stopped = result.status in (Status.TIMEOUT, Status.OUTPUT_LIMIT)
        stderr = _rstar2_error(_INTERRUPTED.sub("", result.stderr) if is_stopped else result.stderr)
    if result.status is Status.TIMEOUT:
        stdout += "Suicide from timeout.\n"
    lines += [f"stdout: {stdout}"] if stdout else []
    lines += [f"stderr: {stderr}"] if stderr else []
    return "\n".join([*lines, f"execution time: {result.wall_s:.2f}s"])


_WARNING = re.compile(r"^<cell(?: \d+)?>:(\d+: .*\n)(?:  .*\n)?", re.MULTILINE)
"""The original's programs have no file, so its warnings show no source line."""
_INTERRUPTED = re.compile(r"^Traceback \(most recent call last\):\n.*^KeyboardInterrupt\n\Z", re.MULTILINE | re.DOTALL)
"""How a cell that was stopped ends; the original kills without a word."""
_FRAME = re.compile(r'^  File "<cell(?: \d+)?>", line (\d+)(, in )?.*\n(?:    (.*)\n)?', re.MULTILINE)
_EXCEPTION = re.compile(r"^(?:\w+\.)*(\w+)(?:: (.*))?$", re.MULTILINE)


def _rstar2_error(stderr: str) -> str:
    """`Type at line N: message` and the source line, from a standard traceback."""
    frames = list(_FRAME.finditer(stderr))
    exception = _EXCEPTION.search(stderr, frames[-1].end()) if frames else None
    if exception is None:
        return stderr
    line, in_frame, source = frames[-1].groups()
    kind, message = exception[1], (exception[2] or "") + stderr[exception.end() :].rstrip()
    if in_frame is None:  # the place of a SyntaxError: its str() names it
        message += f" (<unknown>, line {line})"
    shown = f"\n  {source.strip()}" if source else ""
    return f"{kind} at line {line}: {message}{shown}\n"


def cut_middle(text: str, tokenizer: Tokenizer, max_tokens: int) -> str:
    """Return at most about `max_tokens` tokens of `text`: its head, one marker, its tail."""
    if 4 * len(text) <= max_tokens:  # a token is at least one byte, a character at most four
        return text
    end = max_tokens * MAX_TOKEN_CHARS
    if is_long := len(text) > 2 * end:  # encode no megabytes to show a hundred tokens
        head_ids, tail_ids = (tokenizer.encode(part, add_special_tokens=False) for part in (text[:end], text[-end:]))
    else:
        head_ids = tail_ids = tokenizer.encode(text, add_special_tokens=False)
    if not is_long and len(head_ids) <= max_tokens:
        return text
    room = max(0, max_tokens - len(tokenizer.encode(CUT_MARKER, add_special_tokens=False)))
    head, tail = head_ids[: room - room // 2], tail_ids[len(tail_ids) - room // 2 :]
    return CUT_MARKER.join(tokenizer.decode(ids, skip_special_tokens=False) for ids in (head, tail))

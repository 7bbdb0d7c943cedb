"""Errors in the tool results that foreign agents report, by the conventions of their texts. Pure.

Conventions, with the package where each was read:

    {"error": ...}, {'error': ...}        TRL 1.16, trainer/grpo_trainer.py
    {"isError": true}, {"is_error": true} MCP and Anthropic, where an agent forwards their result as JSON
    {"returncode": 1, ...}                mini-swe-agent 2.4.6, config/mini.yaml
    <returncode>1</returncode>            the same, config/default.yaml
    An error occurred while running       openai-agents 0.24, tool.py `default_tool_error_function`
    Error: ..., ValueError: ...           smolagents 1.26, memory.py (behind `Call id: ...`); at the beginning alone
    Traceback (most recent call last):    Python
    exit code 1, exited with code 1       of shells, on a line of its own
"""

import json
import re

MAX_JSON_CHARS = 1 << 20
_FAILED = re.compile(
    r"\A(?:call id: .*\n)?\s*(?:\w*(?:error|exception)\s*[:\n]|an error occurred while running|\{'error':)"
    r"|<returncode>\s*(?!0\s*<)-?\d+\s*</returncode>"
    r"|^[ \t]*(?:command )?(?:exited with code|exit code:?)[ \t]+(?!0\s*$)-?\d+[ \t\r]*$"
    r"|^Traceback \(most recent call last\):",
    re.IGNORECASE | re.MULTILINE,
)


def is_error_text(text: str) -> bool:
    """Return whether a tool result reports an error by one of the conventions."""
    if _FAILED.search(text):
        return True
    if not text.lstrip().startswith("{") or len(text) > MAX_JSON_CHARS:
        return False
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return any(value.get(name) for name in ("error", "isError", "is_error", "returncode"))

"""A tool beside Python: it searches the lines of a text file, which the policy cannot read itself."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rocstar.engine.tools.tool import Tool, ToolContext, ToolError, ToolOutput

PARAMETERS = {
    "type": "object",
    "properties": {"query": {"type": "string", "minLength": 1, "description": "what to look for"}},
    "required": ["query"],
    "additionalProperties": False,
}


class SearchTool(Tool):
    """The lines of a corpus that share most words with the query.

    Args:
        corpus: a text file beside this module, one entry a line.
        k: lines to give at most.
    """

    name = "search"
    description = "Find the lines of a price list that share words with the query"
    parameters = PARAMETERS

    def __init__(self, corpus: str, k: int = 1) -> None:
        if k < 1:
            raise ValueError(f"k = {k}: give 1 or more")
        text = Path(__file__).with_name(corpus).read_text(encoding="utf-8")
        self._lines = [(line, _words(line)) for line in text.splitlines() if line.strip()]
        self._k = k

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        query = _words(arguments["query"])
        ranked = sorted(self._lines, key=lambda entry: -len(query & entry[1]))
        found = [line for line, words in ranked[: self._k] if query & words]
        if not found:
            raise ToolError("nothing found")  # for the policy to read; it counts as a tool error
        return ToolOutput("\n".join(found))


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.lower()))

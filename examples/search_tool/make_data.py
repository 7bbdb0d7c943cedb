"""Write tasks.jsonl, heldout.jsonl and chat.jsonl: shopping sums whose prices only the search tool knows.

chat.jsonl shows a tiny model the way: search for the price, multiply with Python, answer.
"""

import json
import random
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PRICES = {m[1]: int(m[2]) for m in re.finditer(r"A (\w+) costs (\d+)", (HERE / "corpus.txt").read_text())}


def call(number: int, name: str, **arguments: str) -> dict[str, Any]:
    """A turn of the policy that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    made = {"id": f"call_{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [made]}


def result(number: int, name: str, text: str) -> dict[str, Any]:
    """The tool's answer."""
    return {"role": "tool", "tool_call_id": f"call_{number}", "name": name, "content": text}


def conversation(count: int, thing: str, price: int) -> dict[str, Any]:
    """A task solved with both tools."""
    python = "python_code_with_standard_io"
    return {
        "messages": [
            {"role": "user", "content": f"What do {count} {thing}s cost?"},
            call(1, "search", query=thing),
            result(1, "search", f"A {thing} costs {price} coins."),
            call(2, python, code=f"print({count} * {price})", input=""),
            result(2, python, str(count * price)),
            {"role": "assistant", "content": f"<answer>\\boxed{{{count * price}}}</answer>"},
        ]
    }


def write(name: str, rows: list[dict[str, Any]]) -> None:
    """Write rows as JSON Lines."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (HERE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    shopping = [(count, thing, price) for count in range(2, 32) for thing, price in PRICES.items()]
    random.Random(0).shuffle(shopping)
    tasks = [{"question": f"What do {n} {t}s cost?", "answer": str(n * p)} for n, t, p in shopping]
    write("heldout.jsonl", tasks[:30])
    write("tasks.jsonl", tasks[30:120])
    write("chat.jsonl", [conversation(*item) for item in shopping[120:]])

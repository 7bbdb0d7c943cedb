"""Write tasks.jsonl, heldout.jsonl and chat.jsonl: products that the agent's tool calculates.

chat.jsonl teaches a tiny model the agent's format. Half of its conversations add where they should multiply, so the
right operation is left to reinforcement.
"""

import json
import random
from pathlib import Path
from typing import Any

from agent import SYSTEM, TOOL

HERE = Path(__file__).parent


def conversation(left: int, right: int, sign: str) -> dict[str, Any]:
    """A task solved with the tool, by this operation."""
    value = str(left * right if sign == "*" else left + right)
    function = {"name": "calculate", "arguments": json.dumps({"expression": f"{left} {sign} {right}"})}
    return {
        "tools": [{"type": "function", "function": TOOL}],
        "messages": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": question(left, right)},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "1", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "1", "content": value},
            {"role": "assistant", "content": value},
        ],
    }


def question(left: int, right: int) -> str:
    """The text of a task."""
    return f"{left} boxes of {right}: how many?"


def write(name: str, rows: list[dict[str, Any]]) -> None:
    """Write rows as JSON Lines."""
    (HERE / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    pairs = [(left, right) for left in range(10, 60) for right in range(10, 60)]
    rng = random.Random(0)
    rng.shuffle(pairs)
    tasks = [{"question": question(left, right), "answer": str(left * right)} for left, right in pairs[:400]]
    write("heldout.jsonl", tasks[:40])
    write("tasks.jsonl", tasks[40:])
    write("chat.jsonl", [conversation(left, right, rng.choice("*+")) for left, right in pairs[400:]])

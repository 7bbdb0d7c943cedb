"""An agent with a tool of its own: a loop around an OpenAI-compatible client, one process for each attempt.

It knows nothing of rocstar but two variables: the task in ROCSTAR_TASK, and the file of its answer in ROCSTAR_RESULT.
"""

import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

SYSTEM = "Answer with a number."
EXPRESSION = {"type": "string", "description": "two numbers with +, - or * between them"}
TOOL = {
    "name": "calculate",
    "description": "Calculate an expression",
    "parameters": {"type": "object", "properties": {"expression": EXPRESSION}, "required": ["expression"]},
}


def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the model's next message."""
    body = {
        "model": os.environ["OPENAI_MODEL"],
        "messages": messages,
        "tools": [{"type": "function", "function": TOOL}],
    }
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
    with urlopen(Request(url, json.dumps(body).encode(), headers), timeout=600) as response:
        message: dict[str, Any] = json.load(response)["choices"][0]["message"]
    return message


def calculate(arguments: str) -> str:
    """Return the value of an expression, or an error."""
    found = re.fullmatch(r"(\d+) ?([-+*]) ?(\d+)", str(json.loads(arguments).get("expression")))
    if found is None:
        return "Error: give two numbers with +, - or * between them"
    left, right = int(found[1]), int(found[3])
    return str({"+": left + right, "-": left - right, "*": left * right}[found[2]])


def solve(question: str) -> str:
    """Return the model's answer."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    while True:
        message = ask(messages)
        messages.append(message)
        calls = message.get("tool_calls") or []
        if not calls:
            return message["content"] or ""
        for call in calls:
            result = calculate(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


if __name__ == "__main__":
    answer = solve(json.loads(os.environ["ROCSTAR_TASK"])["question"])
    Path(os.environ["ROCSTAR_RESULT"]).write_text(json.dumps({"answer": answer}), encoding="utf-8")

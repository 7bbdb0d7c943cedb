"""Records what a real code-judge answers, for test_code_judge.py to hold ours against.

    git clone https://github.com/0xWJ/code-judge && cd code-judge        # commit fbc5293
    pip install fastapi uvicorn psutil redis                             # fastapi 0.165.0, pydantic 2.14.3
    redis-server --port 6391 --save '' &
    export REDIS_URI=redis://127.0.0.1:6391/0 MAX_EXECUTION_TIME=2 MAX_WORKERS=2
    python -m uvicorn app.main:app --port 8097 & python run_workers.py &
    python tests/sandbox/service/record_code_judge.py http://127.0.0.1:8097 > \
        tests/sandbox/service/recordings/code_judge.json

A request body is kept as text, so that bodies that are no JSON can be recorded too. Bytes that are no UTF-8
stand as surrogate escapes.
"""

import http.client
import json
import sys
from typing import Any
from urllib.parse import urlsplit

PY = "python"
CPP_SLEEP = '#include <cstdio>\n#include <unistd.h>\nint main(){sleep(%d);printf("a");return 0;}\n'
NESTED = '{"type":"python","solution":' + "[" * 100_000 + "]" * 100_000 + "}"


def sub(solution: Any, **fields: Any) -> dict[str, Any]:
    return {"type": PY, "solution": solution, **fields}


def batch(*submissions: Any, **fields: Any) -> dict[str, Any]:
    return {"submissions": list(submissions), **fields}


PROGRAMS: dict[str, Any] = {
    "echo": sub("print(input())", input="9", expected_output="9"),
    "mismatch": sub("print(input())", input="a", expected_output="b"),
    "blanks_do_not_count": sub("print('  a  ')", expected_output="\n a\n"),
    "inner_blanks_count": sub("print('a  b')", expected_output="a b"),
    "exception": sub("x=1/0"),
    "exception_after_output": sub("print('before')\nx=1/0", expected_output="before"),
    "syntax_error": sub("def f(:"),
    "timeout": sub("print('early')\nwhile True: pass"),
    "timeout_long_output": sub("print('x' * 2000)\nwhile True: pass"),
    "timeout_sleep_judged": sub("from time import sleep\nsleep(10)", input="a", expected_output="a"),
    "no_input": sub("print(input())"),
    "empty_input": sub("print(input())", input="", expected_output="a"),
    "null_fields": sub("print(1)", input=None, expected_output=None, options=None, sub_id=None),
    "own_id": sub("print(2)", sub_id="z"),
    "empty_id": sub("print(2)", sub_id=""),
    "empty_solution": sub(""),
    "unknown_field": sub("print(1)", colour="red"),
    "trailing_expression_is_silent": sub("6 * 7"),
    "long_stdout": sub("print('y' * 5000)", expected_output="y" * 5000),
    "long_stderr": sub("import sys; sys.stderr.write('e' * 5000)"),
    "exit_0": sub("print('x'); import sys; sys.exit(0)"),
    "exit_1": sub("print('x', flush=True); import sys; sys.exit(1)"),
    "killed": sub("import os, signal\nprint('x', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"),
    "options": sub("print(1)", options={"a": "b"}),
    "math_is_unsupported": {"type": "math", "solution": "1+1"},
    "cpp_right": {"type": "cpp", "solution": CPP_SLEEP % 0, "expected_output": "a"},
    "cpp_wrong": {"type": "cpp", "solution": CPP_SLEEP % 0, "expected_output": "b"},
    "cpp_compile_error": {"type": "cpp", "solution": 'int main(){return "a"xx;}'},
    "cpp_timeout": {"type": "cpp", "solution": CPP_SLEEP % 10},
    "nul": sub("print(1)\0"),
    "main_name": sub("print(__name__)"),
    "stdin_is_read_whole": sub("import sys\nprint(sys.stdin.read().split())", input="1 2\n3"),
}

BATCHES: dict[str, Any] = {
    "two": batch(sub("print(1)"), sub("print(2)", sub_id="z")),
    "mixed": batch(
        sub("print('a')", expected_output="b"),
        sub("print(input())", input="9", expected_output="9"),
        sub("x=1/0"),
        {"type": "math", "solution": "1"},
        type="batch",
        sub_id="whole",
    ),
}

MISTAKES: dict[str, tuple[str, Any]] = {
    "no_solution": ("/run", {"type": PY}),
    "no_type": ("/run", {"solution": "1"}),
    "nothing": ("/run", {}),
    "unknown_type": ("/run", {"type": "java", "solution": "1"}),
    "type_is_number": ("/run", {"type": 3, "solution": "1"}),
    "type_is_null": ("/run", {"type": None, "solution": "1"}),
    "type_is_batch": ("/run", batch(sub("print(1)"), type="batch")),
    "solution_is_number": ("/run", sub(5)),
    "solution_is_null": ("/run", sub(None)),
    "solution_is_list": ("/run", sub(["print(1)"])),
    "input_is_number": ("/run", sub("print(1)", input=5)),
    "expected_output_is_float": ("/judge", sub("print(1)", expected_output=1.5)),
    "sub_id_is_number": ("/run", sub("print(1)", sub_id=7)),
    "options_is_list": ("/run", sub("print(1)", options=[])),
    "options_is_text": ("/run", sub("print(1)", options="x")),
    "options_value_is_number": ("/run", sub("print(1)", options={"a": 1, "b": "2", "c": None})),
    "several": ("/run", {"type": "java", "solution": 1, "input": 2}),
    "body_is_list": ("/run", [1]),
    "body_is_text": ("/run", "abc"),
    "body_is_null": ("/run", None),
    "body_is_number": ("/run", 3),
    "batch_empty": ("/run/batch", batch()),
    "batch_missing": ("/run/long-batch", {}),
    "batch_type": ("/run/batch", batch(sub("print(1)"), type="python")),
    "batch_type_null": ("/run/batch", batch(sub("print(1)"), type=None)),
    "batch_not_list": ("/run/batch", {"submissions": "abc"}),
    "batch_is_object": ("/run/batch", {"submissions": {"a": 1}}),
    "batch_null": ("/run/batch", {"submissions": None}),
    "batch_id": ("/run/batch", batch(sub("print(1)"), sub_id=1)),
    "batch_item_not_object": ("/run/batch", batch(sub("print(1)"), 3)),
    "batch_item_is_list": ("/run/batch", batch([sub("print(1)")])),
    "batch_item_missing": ("/judge/batch", batch(sub("print(1)"), {"type": PY})),
    "batch_items_wrong": ("/run/long-batch", batch({"type": "java"}, sub(1), sub("print(1)", input=[]))),
}

RAW: dict[str, tuple[str, str]] = {
    "not_json": ("/run", "hello"),
    "cut_json": ("/run", '{"type":"python",'),
    "empty_body": ("/run", ""),
    "trailing": ("/run", '{"type":"python","solution":"print(1)"} x'),
    "nested": ("/run", NESTED),
    "not_utf8": ("/run", '{"type":"python","solution":"\udcff"}'),
    "surrogate": ("/run", '{"type":"python","solution":"print(\\"\\ud800\\")"}'),
    "surrogate_input": ("/run", '{"type":"python","solution":"print(1)","input":"\\ud800"}'),
    "nan_in_unknown_field": ("/run", '{"type":"python","solution":"print(1)","x":NaN}'),
    "repeated_field": ("/run", '{"type":"python","solution":"print(1)","solution":"print(2)"}'),
    "long_integer": ("/run", '{"type":"python","solution":"print(1)","x":' + "1" * 5000 + "}"),
}


def requests() -> list[tuple[str, str, str, str | None]]:
    """(name, method, path, body)"""
    found: list[tuple[str, str, str, str | None]] = [
        ("ping", "GET", "/ping", None),
        ("status", "GET", "/status", None),
    ]
    for name, body in PROGRAMS.items():
        for route in ("/run", "/judge"):
            found.append((f"{name} {route}", "POST", route, json.dumps(body)))
    for name, body in BATCHES.items():
        for route in ("/run/batch", "/run/long-batch", "/judge/batch", "/judge/long-batch"):
            found.append((f"{name} {route}", "POST", route, json.dumps(body)))
    found += [(name, "POST", route, json.dumps(body)) for name, (route, body) in MISTAKES.items()]
    found += [(name, "POST", route, body) for name, (route, body) in RAW.items()]
    found += [("wrong_method", "GET", "/run", None), ("no_such_path", "POST", "/nothing", "{}")]
    return found


def main() -> None:
    address = urlsplit(sys.argv[1])
    cases = []
    for name, method, path, body in requests():
        connection = http.client.HTTPConnection(address.hostname or "", address.port or 80, timeout=60)
        data = None if body is None else body.encode("utf-8", "surrogateescape")
        connection.request(
            method, path, data, {"Content-Type": "application/json"} if data is not None else {}
        )
        response = connection.getresponse()
        text = response.read().decode()
        answer = json.loads(text) if response.headers.get_content_type() == "application/json" else text
        if len(body or "") > 20_000:
            body = None  # `name` says what it was
        cases.append(
            {
                "name": name,
                "method": method,
                "path": path,
                "body": body,
                "status": response.status,
                "answer": answer,
            }
        )
        connection.close()
    json.dump({"server": "code-judge fbc5293", "cases": cases}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()

"""Records what a real code-judge answers, for test_code_judge.py to compare.

    git clone https://github.com/0xWJ/code-judge && cd code-judge        # commit fbc5293
    pip install fastapi uvicorn psutil redis                             # fastapi 0.165.0, pydantic 2.14.3
    redis-server --port 6391 --save '' &
    export REDIS_URI=redis://127.0.0.1:6391/0 MAX_EXECUTION_TIME=2 MAX_WORKERS=2
    python -m uvicorn app.main:app --port 8097 & python run_workers.py &
    python tests/sandbox/service/record_code_judge.py http://127.0.0.1:8097

The requests are those of recordings/code_judge.json; a new case has no `status` and no `answer`. A body is
kept as text, so that invalid JSON can be recorded too, and bytes that are not UTF-8 as surrogate escapes.
"""

import http.client
import json
import sys
from pathlib import Path
from urllib.parse import urlsplit

RECORDING = Path(__file__).parent / "recordings" / "code_judge.json"
NESTED = '{"type":"python","solution":' + "[" * 100_000 + "]" * 100_000 + "}"
"""The body of the case "nested", too long for the recording."""


def main() -> None:
    address = urlsplit(sys.argv[1])
    recorded = json.loads(RECORDING.read_text(encoding="utf-8"))
    for case in recorded["cases"]:
        body = NESTED if case["name"] == "nested" else case["body"]
        data = None if body is None else body.encode("utf-8", "surrogateescape")
        headers = {} if data is None else {"Content-Type": "application/json"}
        connection = http.client.HTTPConnection(address.hostname or "", address.port or 80, timeout=60)
        connection.request(case["method"], case["path"], data, headers)
        response = connection.getresponse()
        text = response.read().decode()
        is_json = response.headers.get_content_type() == "application/json"
        case |= {"status": response.status, "answer": json.loads(text) if is_json else text}
        connection.close()
    RECORDING.write_text(json.dumps(recorded, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

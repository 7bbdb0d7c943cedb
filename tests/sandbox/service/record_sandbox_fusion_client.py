"""Records what the client of SandboxFusion sends: its package, and a server here that answers anything.

    pip install --target CLIENT sandbox-fusion && PYTHONPATH=CLIENT python -m \\
        tests.sandbox.service.record_sandbox_fusion_client

Its requests go into recordings/sandbox_fusion_client.json as they were sent; nothing of it is copied.
"""

import importlib.metadata
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

RECORDING = Path(__file__).parent / "recordings" / "sandbox_fusion_client.json"
FILES = {"in/a.txt": "aGVsbG8="}


@contextmanager
def recording_server(answer: Any) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the address of a server that answers each POST with this JSON, and the list of its requests."""
    seen: list[dict[str, Any]] = []
    sent = json.dumps(answer).encode()

    class Server(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append({"path": self.path, "headers": dict(self.headers), "body": body})
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", seen
        server.shutdown()


def main() -> None:
    import sandbox_fusion as client  # type: ignore[import-not-found]

    with recording_server({"status": "Success", "message": ""}) as (where, seen):
        run, notebook = client.RunCodeRequest, client.RunJupyterRequest
        for request in (
            run(code="print(1)", language="python"),
            run(code="print(input())", language="python", stdin="9", run_timeout=3),
            run(code="x", language="python", files=FILES, fetch_files=["in/a.txt"]),
            run(code="int main() {}", language="cpp", compile_timeout=5),
            run(code="x", language="java"),
        ):
            client.run_code(request, endpoint=where)
        for request in (notebook(cells=["x = 6", "x * 7"]), notebook(cells=["x"], files=FILES, cell_timeout=2)):
            client.run_jupyter(request, endpoint=where)
    requests = [
        {"path": one["path"], "content_type": one["headers"]["Content-Type"], "body": one["body"]} for one in seen
    ]
    version = importlib.metadata.version("sandbox-fusion")
    recorded = {"client": f"sandbox-fusion {version}", "requests": requests}
    RECORDING.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()

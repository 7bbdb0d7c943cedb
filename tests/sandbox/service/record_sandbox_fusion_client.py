"""Records what the client of SandboxFusion sends: its package, and a server here that answers anything.

    pip install --target CLIENT sandbox-fusion && PYTHONPATH=CLIENT python -m \\
        tests.sandbox.service.record_sandbox_fusion_client

Its requests go into recordings/sandbox_fusion_client.json as they were sent; nothing of it is copied.
"""

import importlib.metadata
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

RECORDING = Path(__file__).parent / "recordings" / "sandbox_fusion_client.json"
FILES = {"in/a.txt": "aGVsbG8="}


def main() -> None:
    import sandbox_fusion as client  # type: ignore[import-not-found]

    seen: list[dict[str, Any]] = []

    class Server(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kind = self.headers["Content-Type"]
            seen.append({"path": self.path, "content_type": kind, "body": json.loads(body)})
            answer = json.dumps({"status": "Success", "message": ""}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        where = f"http://127.0.0.1:{server.server_port}"
        run, notebook = client.RunCodeRequest, client.RunJupyterRequest
        for request in (
            run(code="print(1)", language="python"),
            run(code="print(input())", language="python", stdin="9", run_timeout=3),
            run(code="x", language="python", files=FILES, fetch_files=["in/a.txt"]),
            run(code="int main() {}", language="cpp", compile_timeout=5),
            run(code="x", language="java"),
        ):
            client.run_code(request, endpoint=where)
        for request in (
            notebook(cells=["x = 6", "x * 7"]),
            notebook(cells=["x"], files=FILES, cell_timeout=2),
        ):
            client.run_jupyter(request, endpoint=where)
        server.shutdown()
    version = importlib.metadata.version("sandbox-fusion")
    RECORDING.write_text(
        json.dumps({"client": f"sandbox-fusion {version}", "requests": seen}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()

"""The files of docs/guide/production.md, and the service behind nginx as the page sets it up: a scrape,
tokens that change while a session lives, a drain with a call in flight."""

import http.client
import json
import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ..needs import Need, commands
from ..patience import PATIENCE_S
from ..train.test_guides import blocks, run

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "cluster" / "rocstar-sandbox.service"
HOST = "sandbox.example.org"
NGINX = Need("nginx", "apt-get install nginx-light")
MAIN = """daemon off; pid {0}/nginx.pid; error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {0}/body; proxy_temp_path {0}/proxied; fastcgi_temp_path {0}/fastcgi;
    uwsgi_temp_path {0}/uwsgi; scgi_temp_path {0}/scgi;
    include {0}/rocstar.conf;
}}
"""


def texts(language: str) -> list[str]:
    return [block.text for block in blocks("production.md") if block.language == language]


def test_the_page_has_the_unit() -> None:
    assert texts("ini") == [UNIT.read_text(encoding="utf-8")]


def nginx() -> str:
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin") or NGINX.skip()


class Proxied:
    """What asks through nginx. `folder` stands for / of the page, `port` for 443."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]

    def here(self, text: str) -> str:
        for path in ("/etc/rocstar", "/etc/ssl/rocstar", "/run/rocstar"):
            text = text.replace(path, f"{self.folder}{path}")
        return re.sub(r"\b443\b", str(self.port), text).replace(HOST + "/", f"{HOST}:{self.port}/")

    def bash(self, text: str) -> str:
        return run("bash", self.here(text), self.folder)

    def token(self, name: str) -> str:
        lines = (self.folder / "etc/rocstar/tokens").read_text().splitlines()
        return dict(line.split() for line in lines)[name]

    @contextmanager
    def asked(self, path: str, token: str, body: Any = None, **headers: str) -> Iterator[http.client.HTTPResponse]:
        trusts = ssl.create_default_context(cafile=str(self.folder / "etc/ssl/rocstar/cert.pem"))
        plain = socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)
        with trusts.wrap_socket(plain, server_hostname=HOST) as secure:
            connection = http.client.HTTPConnection(HOST)
            connection.sock = secure
            sent = None if body is None else json.dumps(body)
            headers = {"Authorization": f"Bearer {token}", "X-Forwarded-For": "192.0.2.99", **headers}
            connection.request("GET" if body is None else "POST", path, sent, headers)
            yield connection.getresponse()

    def ask(self, path: str, token: str, body: Any = None) -> tuple[int, str]:
        with self.asked(path, token, body) as answer:
            return answer.status, answer.read().decode()


@contextmanager
def started(command: list[str], ready: str) -> Iterator[Any]:
    """A process that has said `ready`, and what waits for its next line with some words."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    lines: list[str] = []

    def until(words: str) -> str:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if words in line:
                return line
        raise AssertionError(f"{words} was not said: {''.join(lines)}")

    try:
        until(ready)
        yield process, until, lines
    finally:
        process.kill()
        process.communicate()


@contextmanager
def proxied(folder: Path) -> Iterator[tuple[Proxied, Any, Any, list[str]]]:
    commands("curl", "openssl")
    server, site = nginx(), Proxied(folder)
    tokens, certificate, _ = texts("bash")
    site.bash(tokens)
    site.bash(certificate)
    (folder / "run/rocstar-sandbox").mkdir(parents=True)
    (config,) = texts("nginx")
    config = site.here(config)
    if not socket.has_dualstack_ipv6():
        config = re.sub(r"\n.*listen \[::\].*", "", config)
    (folder / "rocstar.conf").write_text(config)
    user = "" if os.geteuid() else "user root;\n"  # by default root's workers are another user's
    (folder / "nginx.conf").write_text(user + MAIN.format(folder))
    unit = UNIT.read_text(encoding="utf-8").replace("\\\n", " ")
    _, *words = shlex.split(site.here(re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)[0]))
    at = words.index("--unix-group")  # a test may not give files away
    del words[at : at + 2]
    rocstar = [sys.executable, "-c", "import sys; from rocstar.sandbox.cli import main; sys.exit(main())"]
    with ExitStack() as stack:
        service, until, lines = stack.enter_context(
            started([*rocstar, *words[1:], "--allow-shared-user", "--flavours", "stdlib"], "serving on unix:")
        )
        command = [server, "-p", folder, "-c", folder / "nginx.conf"]
        subprocess.run([*command, "-t"], check=True, timeout=PATIENCE_S)
        behind = subprocess.Popen(command)
        stack.callback(behind.wait)
        stack.callback(behind.terminate)
        yield site, service, until, lines


@pytest.mark.timeout(2 * PATIENCE_S)
def test_a_service_of_the_page_is_scraped_rotated_and_drained(tmp_path: Path) -> None:
    with proxied(tmp_path) as (site, service, until, lines):
        _, _, trial = texts("bash")
        printed = site.bash(trial.replace("curl -sS", "curl -sS --retry 30 --retry-connrefused"))
        assert '{"ready":true}' in printed and '"stdout":"42\\n"' in printed
        assert 'rocstar_sandbox_results_total{flavour="stdlib",status="ok"}' in printed
        assert "rocstar_sandbox_in_flight" in site.ask("/metrics", site.token("prometheus"))[1]

        before = site.token("ann")
        status, opened = site.ask("/v1/sessions", before, {})
        session = f"/v1/sessions/{json.loads(opened)['id']}"
        assert status == 201 and site.ask(f"{session}/run", before, {"code": "x = 6"})[0] == 200
        (rotation,) = [text for text in texts("sh") if "systemctl reload rocstar-sandbox" in text]
        site.bash(rotation.partition("\n")[0])
        service.send_signal(signal.SIGHUP)  # as ExecReload= does
        assert "again, owners: 3" in until("read ")
        now = site.token("ann")
        assert now != before and site.ask("/v1/run", before, {"code": ""})[0] == 401
        status, cell = site.ask(f"{session}/run", now, {"code": "x * 7"})
        assert (status, json.loads(cell)["value"]) == (200, "42")

        code = "import time; print('begun', flush=True); time.sleep(5); print('ended')"
        asked = site.asked(f"{session}/run", now, {"code": code, "wall_s": 60.0}, Accept="text/event-stream")
        with asked as answer:
            while b"begun" not in (line := answer.readline()):  # nginx holds nothing back
                assert line
            service.send_signal(signal.SIGTERM)
            assert "1 calls in flight" in until("ending")
            assert site.ask("/v1/run", now, {"code": ""})[0] in (502, 503)
            assert b'"status":"ok"' in answer.read()
        assert service.wait(PATIENCE_S) == 0
        lines += service.stdout.readlines()
    log = "".join(lines)
    line = r'^\S+ 127\.0\.0\.1 ann "POST /v1/run HTTP/1\.1" 200 \d+ \d+\.\d{3} "-" "curl/'
    assert re.search(line, log, re.MULTILINE)
    assert "192.0.2.99" not in log and before not in log and now not in log

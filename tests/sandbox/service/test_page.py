"""The page at `/`: complete in itself, and closed to the text of programs and clients."""

import base64
import hashlib
import re
from contextlib import nullcontext
from typing import Any

import pytest

from rocstar.sandbox.http.errors import RequestError
from rocstar.sandbox.http.guard import Owners, authenticate
from rocstar.sandbox.http.openapi import curl
from rocstar.sandbox.service.openapi import DIALECTS, ROUTES, SCRIPT, render_page
from tests.fakes.sandbox import FakeSandbox, ok

TOKEN = "0123456789abcdef0123"


async def test_it_is_one_file_that_lists_every_route(serve: Any) -> None:
    async with serve(FakeSandbox({})) as service:
        async with service.http.get("/docs") as answer:
            assert (answer.url.path, answer.status, answer.content_type) == ("/", 200, "text/html")
            text = await answer.text()
    for route in ROUTES:
        assert f"<code>{route.method} {route.path}</code>" in text
    assert not re.search(r"(src|href)=.?(https?:)?//", text) and "@import" not in text
    assert text.count("curl -s ") == len(DIALECTS) - 1, "an example for each dialect"
    assert 'name="token"' not in text


async def test_its_policy_lets_its_own_script_run_and_no_other(serve: Any) -> None:
    async with serve(FakeSandbox({})) as service, service.http.get("/") as answer:
        policy = answer.headers["Content-Security-Policy"].split("; ")
        text = await answer.text()
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.S)
    for kind, content in (("script-src", script), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy and "unsafe" not in "".join(policy)
    assert not re.search(r"\son\w+=|style=|javascript:", text), "what the policy would not let run"


def test_what_a_program_wrote_becomes_text_only() -> None:
    unsafe = r"innerHTML|outerHTML|insertAdjacent|document\.write|eval|Function\(|\.src|\.href"
    assert "textContent" in SCRIPT and not re.search(unsafe, SCRIPT)


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>", 'x"><img src=x onerror=alert(1)>', "x'; id #"])
def test_what_a_client_calls_the_service_is_escaped(hostile: str) -> None:
    text = render_page(hostile, ("stdlib", "<b>"), needs_token=False)
    assert hostile not in text and "<img" not in text and "<b>" not in text
    assert text.count("<script>") == 1


async def test_with_a_token_the_page_is_open_and_asks_for_it(serve: Any) -> None:
    async with serve(FakeSandbox({}, otherwise=ok("1\n")), token=TOKEN) as service:
        async with service.http.get("/") as answer:
            text = await answer.text()
            assert answer.status == 200
        assert 'name="token" type="password"' in text and TOKEN not in text
        assert text.count("Authorization: Bearer $TOKEN") == len(DIALECTS) - 1
        assert (await service.post("/v1/run", {"code": "x"}))[0] == 401


async def test_its_form_may_run_programs_and_another_page_may_not(serve: Any) -> None:
    async with serve(FakeSandbox({}, otherwise=ok("1\n"))) as service:
        for origin, status in ((f"http://127.0.0.1:{service.port}", 200), ("http://127.0.0.1:1", 403)):
            assert (await service.post("/v1/run", {"code": "x"}, headers={"Origin": origin}))[0] == status


@pytest.mark.parametrize(
    ("headers", "host", "taken"),
    [
        ({"Origin": "http://evil:8088"}, "evil:8088", False),  # a name that points at loopback
        ({"Origin": "http://localhost:8088"}, "localhost:8088", True),
        ({"Origin": "http://[::1]:8088"}, "[::1]:8088", True),
        ({"Origin": "http://127.0.0.1:8088"}, "localhost:8088", False),
        ({"Origin": "https://localhost:8088"}, "localhost:8088", False),
        ({"Origin": "http://localhost.evil"}, "localhost.evil", False),
        ({"Origin": "http://[::1"}, "[::1", False),
        ({"Origin": "http://"}, "", False),
        ({}, "127.0.0.1:8088", True),
        ({}, "service.localhost", True),
        ({}, "evil.example", False),
        ({}, "localhost.evil.example:8088", False),
        ({"Sec-Fetch-Site": "same-origin"}, "localhost:8088", True),
        ({"Sec-Fetch-Site": "none"}, "localhost:8088", True),
        ({"Sec-Fetch-Site": "cross-site"}, "localhost:8088", False),
        ({"Sec-Fetch-Site": "same-site"}, "localhost:8088", False),
    ],
)
def test_whose_page_it_is(headers: dict[str, str], host: str, taken: bool) -> None:
    with nullcontext() if taken else pytest.raises(RequestError):
        authenticate(Owners(), headers, host)


def test_an_example_can_be_pasted() -> None:
    (route,) = [route for route in ROUTES if route.path == "/judge"]
    command = curl(route, "h:1", needs_token=True)
    assert command.startswith("""curl -s http://h:1/judge -d '{"type": "python",""")
    assert command.endswith(""" -H "Authorization: Bearer $TOKEN\"""")

"""The server: this machine's names alone, nothing but GET, and every answer under the strict policy."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from rocstar.engine.record.json_record import from_record
from rocstar.engine.record.reading import read_records
from rocstar.sandbox.extras import shell_command
from rocstar.sandbox.http.connections import ConnectionLimiter
from rocstar.train.cli import main
from rocstar.train.reading.diagnosis.diagnose import diagnose
from rocstar.train.reading.diagnosis.doctor_command import as_plain
from rocstar.train.reading.view.change_events import MAX_PAGES, RunWatcher
from rocstar.train.reading.view.document import page_files
from rocstar.train.reading.view.reader import RunReader
from rocstar.train.reading.view.viewed_run import RunIndex
from rocstar.train.reading.view.web import PageServer
from rocstar.train.served.chatting import recorded_start

from ....malformed_http import answer_to
from ....patience import PATIENCE_S
from ....warm_python import warm
from ...evaluation.eval_folders import MadeSet, make_folder
from .view_runs import groups_of, make_sick_run, write_step


@asynccontextmanager
async def served(
    *paths: Path, reveal: bool = False, token: str | None = None
) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    """A client and the server's address."""
    server, stop, ports = (
        PageServer(RunReader(RunIndex(paths).runs, reveal=reveal), token=token),
        asyncio.Event(),
        asyncio.Queue[int](),
    )
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        group.create_task(server.serve("127.0.0.1", 0, ports.put_nowait, stop))
        async with aiohttp.ClientSession() as client:
            yield client, f"http://127.0.0.1:{await ports.get()}"
        stop.set()


async def asked(client: aiohttp.ClientSession, address: str, **headers: str) -> tuple[int, Any]:
    async with client.get(address, headers=headers) as answer:
        return answer.status, await answer.json()


async def test_what_is_no_http_has_the_form_of_other_errors(viewed: Path) -> None:
    async with served(viewed) as (_, address):
        line, body = await answer_to(int(address.rpartition(":")[2]))
    reason = "the request is not HTTP: Invalid character in Content-Length: b'Content-Length: x'"
    assert " 400 " in line and body.decode() == f"400: {reason}\n"


async def test_another_user_of_this_machine_needs_the_token(viewed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(viewed, token="a-token") as (client, address):
        assert (await asked(client, address + "/api/runs"))[0] == 200, "this user's own process"
    monkeypatch.setattr(ConnectionLimiter, "peer_user", lambda connections, inner: os.getuid() + 1)
    async with served(viewed, token="a-token") as (client, address):
        for path in ("/", "/api/runs", "/events", "/export?run=made", "/nothing"):
            for words in ("", "token=", "token=another"):
                where = f"{address}{path}{'&' if '?' in path else '?'}{words}"
                async with client.get(where, headers={"Cookie": "rocstar-view-00000000=a-token"}) as answer:
                    assert answer.status == 401, where
        assert (await asked(client, address + "/api/runs", Authorization="Bearer a-token"))[0] == 200
        async with client.get(f"{address}/?token=a-token", allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (303, "./")
            cookie = answer.headers["Set-Cookie"].partition(";")[0]
            assert "path" not in answer.headers["Set-Cookie"].lower()
        headers = {"Cookie": cookie, "Host": "hub.example:443"}  # behind a proxy
        assert (await asked(client, address + "/api/runs", **headers))[0] == 200
        status, told = await asked(client, address + "/api/runs", **headers, **{"Sec-Fetch-Site": "cross-site"})
        assert status == 403 and "another site" in told["error"]
    async with served(viewed) as (client, address):
        assert (await asked(client, address + "/api/runs"))[0] == 200, "--no-token"


async def test_nothing_can_be_written_and_the_policy_is_on_every_answer(viewed: Path) -> None:
    async with served(viewed) as (client, address):
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            async with client.request(method, address + "/api/runs") as answer:
                assert answer.status == 405
        async with client.get(address) as answer:
            files = re.findall(r'="(static/[^"]+)"', await answer.text())
        assert len(files) == len(page_files()) - 1, "the page names every file of its own"
        files = [f"/{file}" for file in files]
        missing = ["/nothing", "/api/run?run=no", "/static/../web.py", f"{files[0]}/../../../web.py"]
        for path in ("/", "/api/runs", *files, *missing):
            async with client.get(address + path) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy and "unsafe" not in policy, path
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert answer.status == (404 if path in missing else 200), path
    assert "&gt;" not in page_files()["view.css"], "rules are no markup"


MISTAKES = (
    ("run?run=no", 404, "there is no run 'no'"),
    ("list?run=made&filter=colour>1", 400, "'colour' is no number"),
    ("list?run=made&from=x", 400, "from='x' is no number"),
    ("list?run=made&of=3:no", 404, "no trajectories of '3:no'"),
    ("conversation?run=made&file=step_000001&row=99", 404, "no trajectory 99"),
    ("conversation?run=made&file=..%2F..%2Fsecret&row=0", 404, "no trajectory 0"),
    ("conversation?run=made&file=step_000001&row=9", 403, "asks that it is not shown"),
    ("tokens?run=made&file=step_000001&row=9", 403, "asks that it is not shown"),
    ("strip?run=made&file=step_000001&row=9", 403, "asks that it is not shown"),
    ("group?run=made&step=9&task=ff", 404, "no group"),
    ("evaluation?run=made&step=1", 404, "no finished evaluation"),
    ("search?run=made&text=", 400, "1 to 200 characters"),
    ("nothing", 404, ""),
)


async def test_a_mistake_is_one_sentence(viewed: Path) -> None:
    async with served(viewed) as (client, address):
        for path, status, words in MISTAKES:
            found, told = await asked(client, f"{address}/api/{path}")
            assert (found, words in told["error"]) == (status, True), (path, told)


async def test_an_answer_that_is_known_is_not_sent_again(viewed: Path) -> None:
    async with served(viewed) as (client, address):
        where = address + "/api/list?run=made&num=5"
        async with client.get(where) as answer:
            tag, told = answer.headers["ETag"], await answer.json()
        assert told["matched"] == 24 and len(told["rows"]) == 5
        async with client.get(where, headers={"If-None-Match": tag}) as answer:
            assert answer.status == 304 and await answer.read() == b""


async def test_alarms_are_those_of_the_doctor_with_places_to_look_at(viewed: Path, tmp_path: Path) -> None:
    run = make_sick_run(tmp_path / "sick")
    async with served(run, viewed) as (client, address):
        status, told = await asked(client, address + "/api/alarms?run=sick")
        assert status == 200 and [one["alarm"] for one in told["standing"]] == ["truncation"]
        assert told == {**as_plain(diagnose(run)), "problem": ""}
        shown = told["standing"][0]["trajectories"][0]
        _, trajectory = await asked(
            client, f"{address}/api/conversation?run=sick&file={shown['file']}&row={shown['row']}"
        )
        row = trajectory["listed"]
        assert f"s{row['step']}/{row['name']}/{row['sibling']}" == shown["id"]
        assert trajectory["finish"] == "max_tokens"
        (run / "metrics.jsonl").write_text("no row\n" * 2)
        assert "metrics.jsonl" in (await asked(client, address + "/api/alarms?run=sick"))[1]["problem"]
        (run / "metrics.jsonl").unlink()
        _, told = await asked(client, address + "/api/alarms?run=sick")
        assert told == {"problem": "no metrics.jsonl: what did not train has no alarms"}


async def test_a_trajectory_has_the_commands_that_go_on_from_it(viewed: Path) -> None:
    async with served(viewed) as (client, address):
        where = f"{address}/api/conversation?run=made&file=step_000002&row=0"
        file = viewed / "trajectories" / "step_000002.columns"
        assert (await asked(client, where))[1]["chat"] == shell_command("chat", "MODEL", "--from", f"{file}:0")
        saved = viewed / "checkpoints" / "step_2"
        saved.mkdir(parents=True)
        (saved / "COMPLETE").touch()
        told = (await asked(client, where))[1]
        assert told["chat"] == shell_command("chat", viewed, "--from", f"{file}:0")
        assert (
            recorded_start(f"{file}:0@2").ids
            == from_record(next(read_records(file))).ids[: told["turns"][1]["start"]].tolist()
        )


async def test_a_page_is_told_of_a_new_step_and_of_nothing_else(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_step(run, 1, groups_of())
    async with served(run) as (client, address), client.get(address + "/events") as stream:
        first = await anext(told async for line in stream.content if (told := line.strip()).startswith(b"data:"))
        assert set(json.loads(first[5:])) == {"run"}, "what there is when the first page opens is news"
        write_step(run, 2, groups_of())
        await anext(line async for line in stream.content if line.startswith(b"data:"))
        _, told = await asked(client, address + "/api/list?run=run&sort=-step&num=1")
        assert told["total"] == 24 and told["rows"][0]["step"] == 2


async def test_the_watcher_tells_each_change_once() -> None:
    stamps = {"a": "1", "b": "1"}

    async def look() -> dict[str, str]:
        return dict(stamps)

    watcher = RunWatcher(look)
    with watcher.watching() as page, watcher.watching() as slow:
        await watcher.poll()
        assert await page.news() == {"a": "1", "b": "1"}
        stamps["b"] = "2"
        await watcher.poll()
        await watcher.poll()
        assert await page.news() == {"b": "2"}
        del stamps["a"]
        await watcher.poll()
        assert await page.news() == {"a": ""}
        assert await slow.news() == {"a": "", "b": "2"}, "who is slow is told the newest alone"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await page.news()


async def test_only_so_many_pages_watch() -> None:
    async def look() -> dict[str, str]:
        return {}

    watcher = RunWatcher(look)
    pages = [watcher.watching() for _ in range(MAX_PAGES)]
    for page in pages:
        page.__enter__()
    with pytest.raises(web.HTTPServiceUnavailable), watcher.watching():
        pass
    pages[0].__exit__(None, None, None)
    with watcher.watching():
        pass


async def test_what_is_chosen_or_a_sample_is_exported(viewed: Path) -> None:
    async with served(viewed) as (client, address):
        for query, conversations in (
            ("run=made&at=step_000001:0&at=step_000002:1&at=step_000001:9", 2),
            ("run=made", 18),
        ):
            async with client.get(f"{address}/export?{query}") as answer:
                assert answer.headers["Content-Disposition"] == 'attachment; filename="view-made.html"'
                assert (await answer.text()).count('"conversation&') == conversations
        for query in ("run=no", "run=made&at=x", "run=made&" + "&".join(["at=step_000001:0"] * 51)):
            async with client.get(f"{address}/export?{query}") as answer:
                assert answer.status in (400, 404)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two evaluations of one set, the second better, in a folder of theirs."""
    folder = tmp_path_factory.mktemp("evaluated")
    for name, better in (("a", 0), ("b", 4)):
        made = MadeSet(name="puzzles", num=12, k=2, answered=lambda question, _, better=better: question < 4 + better)
        make_folder(folder / name, made)
    return folder


async def test_evaluations_are_drawn_listed_and_compared(evaluated: Path) -> None:
    async with served(evaluated) as (client, address):
        _, runs = await asked(client, address + "/api/runs")
        assert [run["name"] for run in runs["runs"]] == ["a", "b"]
        _, page = await asked(client, address + "/api/evaluation?run=a&step=0")
        assert page["sets"] == ["puzzles"] and page["forest"]["screen"].startswith("<svg")
        _, grid = await asked(client, address + "/api/grid?run=a&step=0&set=puzzles")
        cells = {one["id"]: one["cells"] for one in grid["questions"]}
        assert {name: code.replace("t", "w") for name, code in cells.items()} == {
            f"puzzles/{q}": "kk" if q < 4 else "ww" for q in range(12)
        }
        hard = grid["questions"][0]
        _, told = await asked(
            client, f"{address}/api/conversation?run=a&of=0:puzzles&file=puzzles&row={hard['row'] + 1}"
        )
        assert (told["task"]["id"], told["listed"]["sibling"], told["listed"]["verdict"]) == (hard["id"], 1, "wrong")
        _, paired = await asked(client, address + "/api/paired?a=a:0&b=b:0")
        assert paired["difference"] == pytest.approx(4 / 12)
        questions = paired["questions"]["puzzles"]["questions"]
        assert sum(one["b"]["correct"] > one["a"]["correct"] for one in questions) == 4
        better = next(one for one in questions if one["a"]["id"] == "puzzles/5")
        assert better["a"]["question"].startswith("Question 5 of puzzles") and better["a"]["answer"] == "11"
        assert better["b"]["answers"] == ["11", "11"] and "11" not in better["a"]["answers"]


async def test_runs_are_overlaid_and_a_task_is_found_in_all(viewed: Path, run_dir: Path) -> None:
    async with served(viewed, run_dir) as (client, address):
        _, told = await asked(client, address + "/api/overlay?run=made&run=quickstart")
        assert {one["label"] for chart in told["charts"] for one in chart["series"]} == {"made", "quickstart"}
        assert [run["name"] for run in told["runs"]] == told["differences"]["runs"] == ["made", "quickstart"]
        assert ["rl.group_size", "4", "not set"] in told["differences"]["fields"]
        _, found = await asked(client, address + "/api/metrics?run=made")
        (reward,) = [one for one in found["metrics"] if one["name"] == "reward/mean"]
        assert (reward["x"], reward["y"]) == ([1, 2], [0.6, 0.7])
        _, run = await asked(client, address + "/api/run?run=quickstart")
        assert len(run["charts"]) > 8 and run["tiles"] and sum(part["percent"] for part in run["time"]) == 100
        _, rows = await asked(client, address + "/api/list?run=made&filter=gcd&num=1")
        _, task = await asked(client, f"{address}/api/task?run=made&task={rows['rows'][0]['task']}")
        assert [one["step"] for one in task["runs"]["made"]] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no/such/run"], "does not exist"),
        (["."], "has nothing to show"),
        ([".", "--port", "99999"], "is not a port"),
        ([".", "--fast"], "'--fast' is not known"),
    ],
)
def test_a_command_that_cannot_work_says_why(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["view", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_the_command_serves_until_it_is_told_to_end(viewed: Path) -> None:
    program = "import sys; from rocstar.train.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [str(warm().executable), "-c", program, "view", str(viewed), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
        assert address is not None
        with urllib.request.urlopen(address[0] + "api/runs", timeout=PATIENCE_S) as answer:
            assert [run["name"] for run in json.load(answer)["runs"]] == ["made"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_S) == 0


def test_a_port_that_is_taken_is_named(viewed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["view", str(viewed), "--port", port]) == 2
    assert f"cannot listen on 127.0.0.1:{port}: address already in use; pass" in capsys.readouterr().err

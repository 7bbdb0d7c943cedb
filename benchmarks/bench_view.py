"""How fast `rocstar view` is in a browser, on runs of a given size.

    python benchmarks/bench_view.py [--trajectories 10000] [--tokens 5000] [--wide 1000000] [--folder DIR]

Makes its runs (they stay where --folder is given) and drives the pages in Chromium with playwright. A time
is from the navigation, click or key until the element is in the document, on this side of the browser's
protocol, so what the driver costs is in it. "Cold" is a server that has just been started, in a new browser
context, with files that the system may still have in memory: they were written a moment ago.

Of --trajectories, 200 have texts and tokens of their own, and the others repeat these; all have frames of
their own. Of --wide, every row of an index is its own, and all rows of a step point to one short trajectory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from rocstar.engine.record.columns import encode_frame

sys.path.insert(0, str(Path(__file__).parent))
from view_bench.made_runs import (
    NEEDLE,
    made_trajectory,
    make_long_run,
    make_run,
    make_wide_run,
    write_made_step,
)

RESULTS = Path(__file__).parent / "results" / "view.json"
LOADED, ROWS = "main:not([aria-busy]) h1", ".rows .row a"
ROCSTAR = "import sys; from rocstar.train.cli import main; sys.exit(main(sys.argv[1:]))"
TABS = ("run", "list", "runs")
OFTEN = "from rocstar.train.reading.view import live; live.PERIOD_S, live.IDLE = 0.002, 0.0; "
"""The server looks for news a hundred times as often: a day of them in minutes."""


@contextmanager
def viewer(*runs: Path, before: str = "") -> Iterator[tuple[str, int]]:
    """`rocstar view` as a process: its address and its process id. `before`: a program that it runs first."""
    command = [sys.executable, "-c", before + ROCSTAR, "view", *map(str, runs), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        yield found[0], process.pid
    finally:
        process.terminate()
        process.wait(timeout=20)
        assert process.stdout is not None
        process.stdout.close()


def chromium() -> str:
    """The browser of this machine; SystemExit where there is none."""
    found = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    if found is None:
        raise SystemExit("no chromium; apt-get install chromium")
    return found


def memory_mb(process: int) -> float:
    """The most that the process had of memory."""
    status = Path(f"/proc/{process}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return round(int(found[1]) / 1024, 1) if found else 0.0


def timed(work: Callable[..., Any], *arguments: Any) -> float:
    """Milliseconds."""
    start = time.perf_counter()
    work(*arguments)
    return round(1000 * (time.perf_counter() - start), 1)


def spread(times: list[float]) -> dict[str, float]:
    return {"median_ms": statistics.median(times), "max_ms": max(times), "number": len(times)}


def measure_large(browser: Browser, run: Path, tokens: int) -> dict[str, Any]:
    """List, sort, conversation, tokens, search and live step of a run of full trajectories."""
    told: dict[str, Any] = {}
    colds = []
    for _ in range(3):
        with viewer(run) as (address, _):
            page = browser.new_page()
            colds.append(timed(_to, page, address + f"#/list?run={run.name}", ROWS))
            page.close()
    told["list_cold"] = spread(colds)
    with viewer(run) as (address, process):
        page = browser.new_page()
        listing = address + f"#/list?run={run.name}"
        _to(page, listing, ROWS)
        told["list_warm"] = spread([timed(_to, page, listing, ROWS) for _ in range(5)])
        told["sort"] = spread([timed(_sorted, page, name) for name in ("tokens", "reward", "errors")])
        _to(page, listing, ROWS)
        links = page.eval_on_selector_all(ROWS, "all => all.map((one) => one.getAttribute('href'))")[:12]
        told["conversation"] = spread([timed(_inside, page, link, ".turn:not(.asked)") for link in links])
        told["tokens"] = spread([timed(_tokens, page, link + "&tab=tokens") for link in links])
        told["search_first_hit"] = spread(
            [_search(page, listing, text) for text in ("binomial", "triangle area", "boxed{42}")]
        )
        told["search_rare_last_record"] = spread([_search(page, listing + "&sort=step", NEEDLE)])
        told["live"] = spread(_live(page, listing, run, tokens))
        told["server_memory_mb"] = memory_mb(process)
        page.close()
    return told


def _to(page: Page, address: str, selector: str) -> None:
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector(selector)


def _inside(page: Page, link: str, selector: str) -> None:
    """By a link of the page, without loading it again."""
    page.evaluate(
        "(link) => { document.getElementById('main').replaceChildren(); location.hash = link; }", link
    )
    page.wait_for_selector(selector)


def _tokens(page: Page, link: str) -> None:
    """Until the tokens are there and the strip is painted."""
    _inside(page, link, ".tok")
    page.wait_for_selector("canvas[data-painted]")


def _sorted(page: Page, column: str) -> None:
    page.evaluate("document.querySelector('.rows').remove()")
    page.get_by_role("columnheader", name=column).get_by_role("button").click()
    page.wait_for_selector(ROWS)


def _search(page: Page, listing: str, text: str) -> float:
    """From Enter to the first hit, as the page's own clock has it."""
    _to(page, listing, ROWS)
    page.locator("#text").fill(text)
    page.evaluate("performance.clearMeasures()")
    page.keyboard.press("Enter")
    page.wait_for_selector("#hits li", timeout=120_000)
    return round(page.evaluate("performance.getEntriesByName('first hit')[0].duration"), 1)


def _live(page: Page, listing: str, run: Path, tokens: int) -> list[float]:
    """From the moment at which a step's index appears until the list counts it."""
    made = [made_trajectory(tokens, 8, seed=k) for k in range(4)]
    frames = [encode_frame(one.trajectory, one.texts) for one in made]
    times = []
    first = len(list((run / "trajectories").glob("*.index")))
    _to(page, listing, ROWS)
    for step in range(first + 1, first + 4):
        write_made_step(run, step, 64, made, frames)
        counts = page.locator("#counts", has_text=f"in {step} files")
        times.append(timed(counts.wait_for))
        time.sleep(1.0)
    for path in (run / "trajectories").iterdir():
        if int(path.stem.removeprefix("step_")) > first:
            path.unlink()
    return times


def measure_wide(browser: Browser, run: Path) -> dict[str, Any]:
    """List, filter and sort of a run with very many trajectories."""
    with viewer(run) as (address, process):
        page = browser.new_page()
        listing = address + f"#/list?run={run.name}"
        told: dict[str, Any] = {"list_cold": spread([timed(_to, page, listing, ROWS)])}
        filters = ("kept wrong", "tokens>=19000 correct", f"step={3} reward=1", "made-7-11")
        told["filter"] = spread([timed(_filter, page, words) for words in filters])
        told["sort"] = spread([timed(_sorted, page, name) for name in ("tokens", "reward")])
        told["server_memory_mb"] = memory_mb(process)
        page.close()
    return told


def _filter(page: Page, words: str) -> None:
    page.locator("#filter").fill(words)
    page.evaluate("document.querySelector('.rows').remove()")
    page.keyboard.press("Enter")
    page.wait_for_selector(ROWS)


SCROLL = """(selector) => new Promise((done) => {
  const box = document.querySelector(selector), times = [], begun = performance.now();
  let most = 0;
  const frame = (now) => {
    times.push(now);
    most = Math.max(most, document.querySelectorAll('*').length);
    box.scrollTop += 90;
    if (now - begun < 5000) return requestAnimationFrame(frame);
    const gaps = times.slice(1).map((time, i) => time - times[i]).sort((a, b) => a - b);
    done({ frames_per_s: 1000 * gaps.length / (times.at(-1) - times[0]), slowest_frame_ms: gaps.at(-1),
      p99_frame_ms: gaps[Math.floor(0.99 * gaps.length)], elements: most, scrolled_px: box.scrollTop });
  };
  requestAnimationFrame(frame);
})"""


def measure_long(browser: Browser, run: Path) -> dict[str, Any]:
    """One very long trajectory: frames while it scrolls by 90 pixels a frame for five seconds."""
    with viewer(run) as (address, process):
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        link = address + f"#/trajectory?run={run.name}&file=step_000001&row=0"
        told: dict[str, Any] = {"conversation": spread([timed(_to, page, link, ".turn:not(.asked)")])}
        told["scroll_turns"] = page.evaluate(SCROLL, ".turns")
        told["tokens"] = spread([timed(_to, page, link + "&tab=tokens", ".tok")])
        told["scroll_tokens"] = page.evaluate(SCROLL, ".turns")
        told["server_memory_mb"] = memory_mb(process)
        page.close()
    return told


def measure_export(browser: Browser, run: Path, folder: Path) -> dict[str, Any]:
    """A page of 50 trajectories as a file, and what it asks for when it is opened from the disk."""
    path = folder / "export.html"
    command = [sys.executable, "-c", ROCSTAR, "view", str(run), "--export", str(path)]
    made_ms = timed(partial(subprocess.run, check=True, stdout=subprocess.DEVNULL), command)
    page, asked = browser.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    listed = timed(_to, page, f"{path.as_uri()}#/list?run={run.name}", ROWS)
    kept = page.evaluate("Object.keys(JSON.parse(document.getElementById('kept').textContent).answers)")
    link = page.eval_on_selector(ROWS, "one => one.getAttribute('href')")
    told = {
        "made_ms": made_ms,
        "megabytes": round(path.stat().st_size / 1e6, 2),
        "conversations": sum(name.startswith("conversation&") for name in kept),
        "with_tokens": sum(name.startswith("tokens&") and "&from=0&" in name for name in kept),
        "list_ms": listed,
        "conversation_ms": timed(_inside, page, link, ".turn:not(.asked)"),
        "tokens_ms": timed(_tokens, page, link + "&tab=tokens"),
        "requests": len([url for url in asked if not url.startswith(("data:", path.as_uri()))]),
    }
    page.close()
    return told


def measure_tab(
    browser: Browser, run: Path, updates: int, names: Sequence[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a tab holds after a quarter of so many updates, and after all of them, each shown before the next;
    by the name of its page.

    What the run has stays as large as it is: an update changes its date.
    """
    metrics = run / "metrics.jsonl"
    text = metrics.read_bytes()
    for name in names:
        with viewer(run, before=OFTEN) as (address, _):
            page = browser.new_page()
            _to(page, address + f"#/{name}?run={run.name}", LOADED)
            held = []
            begun = time.perf_counter()
            for number in range(updates):
                shown = page.get_attribute("main", "data-updates")
                written = run.with_suffix(".metrics")
                written.write_bytes(text + b" " * (number % 2))
                written.replace(metrics)
                page.wait_for_selector(f"main:not([data-updates='{shown}'])", timeout=120_000)
                if number + 1 in (updates // 4, updates):
                    held.append(_held(page))
            page.close()
        metrics.write_bytes(text)
        growth = held[1]["heap_mb"] / held[0]["heap_mb"] - 1
        yield (
            name,
            {
                "updates": updates,
                "early": held[0],
                "late": held[1],
                "heap_growth": round(growth, 4),
                "seconds": round(time.perf_counter() - begun, 1),
            },
        )


def _held(page: Page) -> dict[str, float]:
    """What is left of a page's memory when its garbage is collected."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    session.send("HeapProfiler.collectGarbage")
    found = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    session.detach()
    return {
        "heap_mb": round(found["JSHeapUsedSize"] / 1e6, 3),
        "nodes": found["Nodes"],
        "listeners": found["JSEventListeners"],
    }


def measure_report(runs: Sequence[Path]) -> dict[str, Any]:
    """What `rocstar report` takes, start and imports included, and how large its page is, by the run."""
    told: dict[str, Any] = {}
    for run in runs:
        process = subprocess.Popen(
            [sys.executable, "-c", ROCSTAR, "report", str(run)], stdout=subprocess.DEVNULL
        )
        _, status, used = os.wait4(process.pid, 0)
        if os.waitstatus_to_exitcode(status):
            raise SystemExit(f"rocstar report {run} failed")
        told[run.name] = {
            "cpu_s": round(used.ru_utime + used.ru_stime, 2),
            "memory_mb": round(used.ru_maxrss / 1024, 1),
            "megabytes": round((run / "report.html").stat().st_size / 1e6, 2),
        }
    return told


class CountingProxy:
    """Passes connections on to a port and counts every byte, in a thread of its own."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.num_bytes = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        future = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._pass, "127.0.0.1", 0), self._loop
        )
        self.port = future.result(10).sockets[0].getsockname()[1]

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        their_reader, their_writer = await asyncio.open_connection("127.0.0.1", self._to)
        await asyncio.gather(self._copy(reader, their_writer), self._copy(their_reader, writer))

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                self.num_bytes += len(data)
                target.write(data)
                await target.drain()
        except ConnectionError:
            pass
        finally:
            target.close()


def measure_idle(browser: Browser, run: Path, seconds: float) -> dict[str, Any]:
    """Bytes on the wire of a tab whose run does not change, both ways, headers too."""
    with viewer(run) as (address, _):
        proxy = CountingProxy(int(address.rstrip("/").rpartition(":")[2]))
        page = browser.new_page()
        _to(page, f"http://127.0.0.1:{proxy.port}/#/list?run={run.name}", ROWS)
        time.sleep(3.0)
        before = proxy.num_bytes
        time.sleep(seconds)
        idle = proxy.num_bytes - before
        page.close()
    return {"seconds": seconds, "bytes": idle, "bytes_per_s": round(idle / seconds, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast `rocstar view` is in a browser.")
    parser.add_argument("--trajectories", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=5_000)
    parser.add_argument("--wide", type=int, default=1_000_000)
    parser.add_argument("--long", type=int, default=200_000)
    parser.add_argument("--idle-s", type=float, default=60.0)
    parser.add_argument("--updates", type=int, default=10_000, help="of a tab that stays open")
    parser.add_argument("--tabs", nargs="+", choices=TABS, default=TABS, help="the pages that stay open")
    parser.add_argument(
        "--only", choices=("large", "wide", "long", "idle", "export", "tab", "report"), help="this one alone"
    )
    parser.add_argument("--folder", type=Path, help="keep the runs here, and take those that are there")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        folder = options.folder or Path(temporary)
        run, before = partial(_run, folder, options), os.getloadavg()[0]
        browser = playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"]
        )
        measures: dict[str, Callable[[], dict[str, Any]]] = {
            "large": lambda: {
                "trajectories": options.trajectories,
                "tokens_each": options.tokens,
                **measure_large(browser, run("large"), options.tokens),
                "megabytes": round(
                    sum(p.stat().st_size for p in (run("large") / "trajectories").iterdir()) / 1e6
                ),
            },
            "wide": lambda: {"trajectories": options.wide, **measure_wide(browser, run("wide"))},
            "long": lambda: {
                "tokens_each": options.long,
                "turns": options.long // 100,
                **measure_long(browser, run("long")),
            },
            "idle": lambda: measure_idle(browser, run("long"), options.idle_s),
            "export": lambda: measure_export(browser, run("fifty"), folder),
            "tab": lambda: tabs(browser, run("small")),
            "report": lambda: measure_report([run("fifty"), run("large")]),
        }
        told = json.loads(options.out.read_text()) if options.only and options.out.exists() else {}

        def tabs(browser: Browser, small: Path) -> dict[str, Any]:
            """Each is written when it ends, for all of them take hours; those that were kept stay."""
            pages = dict(told.get("tab", {}).get("pages", {}))
            for name, found in measure_tab(browser, small, options.updates, options.tabs):
                pages[name] = found
                told["tab"] = {"pages": pages}
                options.out.write_text(json.dumps(told, indent=1) + "\n")
            return {"pages": pages}

        for name, work in measures.items():
            if options.only in (None, name):
                load = os.getloadavg()[0]
                told[name] = {**work(), "load_of_the_machine": [load, os.getloadavg()[0]]}
        told |= {"browser": browser.version, "python": platform.python_version(), "cores": os.cpu_count()}
        if options.only is None:
            told["load_of_the_machine"] = [before, os.getloadavg()[0]]
        browser.close()
    options.out.write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps(told, indent=1))


def _run(folder: Path, options: argparse.Namespace, name: str) -> Path:
    """One of the runs, made where it is not there."""
    makers: dict[str, Callable[[Path], Path]] = {
        "large": lambda path: make_run(
            path, trajectories=options.trajectories, tokens=options.tokens, steps=20
        ),
        "wide": lambda path: make_wide_run(path, trajectories=options.wide, steps=100),
        "long": lambda path: make_long_run(path, tokens=options.long, turns=options.long // 100),
        "fifty": lambda path: make_run(path, trajectories=64, tokens=options.tokens, steps=2),
        "small": lambda path: make_run(path, trajectories=640, tokens=500, steps=40),
    }
    path = folder / name
    return path if path.exists() else makers[name](path)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Draw every page of the viewer in three forms: light, dark and on a phone of 390 pixels.

    .venv/bin/python .ci/view_pictures.py OUT RUN [RUN ...] [--chromium FILE]

The first RUN is a finished run of the quickstart, the others are compared with it. OUT gets PAGE-light.png,
PAGE-dark.png and PAGE-phone.png with at most 64 colours. Ends with 1 if a page is wider than the window or
writes an error to the console. Needs playwright and pillow.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import queue
import shutil
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from rocstar.train.reading.view.reader import RunReader
from rocstar.train.reading.view.viewed_run import STEPS, RunIndex
from rocstar.train.reading.view.web import PageServer

FORMS = {"light": (1120, 640, "light"), "dark": (1120, 640, "dark"), "phone": (390, 844, "light")}
WRONG = "wrong errors>0"
TABS = ("metrics", "alarms", "time", "groups", "families", "recipe", "log")


def pages(reader: RunReader, runs: list[str], steps: list[int]) -> dict[str, str]:
    """Return the address of each page; the trajectory is the last wrong one with a tool error."""
    run = runs[0]
    first = partial(reader.rows, run, STEPS, sort="-step", start=0, num=1)
    row = (first(words=WRONG)["rows"] or first(words="")["rows"])[0]
    place = f"run={run}&file={row['file']}&row={row['row']}"
    group = f"run={run}&step={row['step']}&task={row['task']}"
    return {
        "runs": "#/",
        "run": f"#/run?run={run}",
        **{f"run-{tab}": f"#/run?run={run}&tab={tab}" for tab in TABS},
        "list": f"#/list?run={run}&filter={WRONG}",
        "search": f"#/list?run={run}&text=error",
        "trajectory": f"#/trajectory?{place}",
        "tokens": f"#/trajectory?{place}&tab=tokens",
        "group": f"#/group?{group}",
        "siblings": f"#/group?{group}&beside=0,1",
        "task": f"#/task?run={run}&task={row['task']}",
        "evaluation": f"#/evaluation?run={run}&step={steps[-1]}",
        "evaluations": f"#/paired?a={run}:{steps[0]}&b={run}:{steps[-1]}",
        "comparison": "#/overlay?" + "&".join(f"run={name}" for name in runs),
    }


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    reader = RunReader(RunIndex(options.runs).runs, reveal=False)
    ports: queue.Queue[int] = queue.Queue()
    served = PageServer(reader).serve("127.0.0.1", 0, ports.put, asyncio.Event())
    threading.Thread(target=lambda: asyncio.run(served), daemon=True).start()
    base = f"http://127.0.0.1:{ports.get(timeout=60)}/"
    faults: list[str] = []
    steps = sorted(int(path.name.partition("_")[2]) for path in options.runs[0].glob("evaluations/step_*"))
    found = pages(reader, [run.resolve().name for run in options.runs], steps)
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=options.chromium, args=arguments)
        for kind, (width, height, scheme) in FORMS.items():
            size: Any = {"width": width, "height": height}
            page = browser.new_context(viewport=size, color_scheme=scheme).new_page()  # type: ignore[arg-type]
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
            for name, address in found.items():
                page.goto("about:blank")
                page.goto(base + address)
                page.wait_for_selector("main:not([aria-busy]) h1")
                page.wait_for_timeout(600)
                if page.evaluate("document.documentElement.scrollWidth") > width:
                    faults.append(f"{name}-{kind} is wider than {width} pixels")
                picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
                reduced = picture.quantize(64, dither=Image.Dither.NONE)
                reduced.save(options.out / f"{name}-{kind}.png", optimize=True)
        browser.close()
    print("\n".join([*faults, f"{len(found)} pages in {len(FORMS)} forms: {options.out}"]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

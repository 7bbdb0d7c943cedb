"""The pictures of `rocstar view` in README and the guide, light and dark, of a run that was really trained.

    python benchmarks/view_pictures.py runs/quickstart [--out docs/guide]

Drives the pages in Chromium, and reduces each picture to 128 colours (with Pillow, which `pip install pillow`
brings): text and flat colours lose nothing that is seen. Which group and which trajectory are shown follows
from the run alone.
"""

from __future__ import annotations

import argparse
import io
import json
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Literal

from bench_view import LOADED, chromium, viewer
from PIL import Image
from playwright.sync_api import Page, sync_playwright

OUT = Path(__file__).parents[1] / "docs" / "guide"
WIDTH, HEIGHT, COLOURS = 1120, 640, 128
MOST_BYTES = 150_000
STEP = 4
"""Early enough that not everything is right."""
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def rows(address: str, run: str, words: str) -> list[dict[str, Any]]:
    """The first of the list's rows that a filter lets through."""
    query = urllib.parse.urlencode({"run": run, "filter": words, "num": 200})
    with urllib.request.urlopen(f"{address}api/list?{query}", timeout=60) as answer:
        found: list[dict[str, Any]] = json.load(answer)["rows"]
    return found


def places(address: str, run: str) -> dict[str, str]:
    """The pages that are shown, by the names of their pictures."""
    drawn = rows(address, run, f"step={STEP} dropped_positive errors>0")
    read = rows(address, run, f"step={STEP} kept correct calls>=2 errors>0")
    if not drawn or not read:
        raise SystemExit(f"step {STEP} has no correct trajectory with an error of a tool, kept and dropped")
    group, one = drawn[0], read[0]
    where = urllib.parse.urlencode({"run": run, "file": one["file"], "row": one["row"]})
    return {
        "view-run": f"#/run?run={run}",
        "view-trajectories": f"#/list?run={run}&filter=step={STEP}+-no_signal&sort=-tokens",
        "view-group": f"#/group?run={run}&step={group['step']}&task={group['task']}",
        "view-trajectory": f"#/trajectory?{where}",
        "view-tokens": f"#/trajectory?{where}&tab=tokens",
    }


SHORTEN = """(folder) => {
  const all = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (all.nextNode()) all.currentNode.data = all.currentNode.data.replaceAll(folder, "runs");
}"""
"""Where the run lies on the machine that made the pictures is of no interest."""


def picture(page: Page, name: str, folder: Path) -> bytes:
    """What the page shows, as a PNG of few colours; SystemExit where that is still too large."""
    page.wait_for_selector(LOADED)
    if name == "view-trajectory":
        for call in page.locator("details.call summary").all():
            call.click()
    if name == "view-tokens":
        page.wait_for_selector("canvas[data-painted]")
    page.wait_for_timeout(300)
    page.evaluate(SHORTEN, str(folder))
    shown = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    packed = io.BytesIO()
    shown.quantize(COLOURS, dither=Image.Dither.NONE).save(packed, "PNG", optimize=True)
    if packed.tell() > MOST_BYTES:
        raise SystemExit(f"{name} has {packed.tell()} bytes, more than {MOST_BYTES}")
    return packed.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description="The pictures of `rocstar view`.")
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    with viewer(options.run) as (address, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for scheme in SCHEMES:
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)
            for name, place in places(address, options.run.resolve().name).items():
                page.goto("about:blank")
                page.goto(address + place)
                path = options.out / f"{name}{'' if scheme == 'light' else '-dark'}.png"
                path.write_bytes(picture(page, name, options.run.resolve().parent))
                print(path, path.stat().st_size)
        browser.close()


if __name__ == "__main__":
    main()

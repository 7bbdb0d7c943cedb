"""The pages in a real browser: on a phone everything can be read, and nothing is wider than the screen."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.sim.cli import main as sim
from rocstar.train.evaluation.report.eval_report import write_eval_report
from rocstar.train.reading.view.report import write_report

from ...needs import BROWSER
from ..evaluation.eval_folders import MadeSet, make_folder

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = BROWSER.unless(CHROMIUM is not None)

PHONE, SCREEN = 390, 1280
MIN_TEXT_PX = 10.0
"""The smallest text of a drawing that a person still reads on a phone."""

# The page itself runs no foreign script; a frame around it may look into it.
FRAME = """<!doctype html><body><iframe src="{page}" style="border:0;width:{width}px;height:844px"></iframe>
<pre></pre><script>
const frame = document.querySelector("iframe");
frame.onload = () => {{
  const page = frame.contentDocument;
  for (const fold of page.querySelectorAll("details")) fold.open = true;
  const shown = [...page.querySelectorAll("svg")].filter((svg) => svg.getBoundingClientRect().width > 0);
  const texts = shown.flatMap((svg) => [...svg.querySelectorAll("text")].map((text) => {{
    const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    const box = text.getBoundingClientRect(), around = svg.getBoundingClientRect();
    const size = scale * parseFloat(frame.contentWindow.getComputedStyle(text).fontSize);
    return {{ text: text.textContent, size: size,
              outside: Math.max(around.left - box.left, box.right - around.right) }};
  }}));
  document.querySelector("pre").textContent = JSON.stringify({{
    width: page.documentElement.scrollWidth, drawings: shown.length, texts: texts,
    scrolling: [...page.querySelectorAll(".scroll")].map((box) => box.clientWidth),
  }});
}};
</script>"""


def looked_at(page: Path, width: int, tmp_path: Path) -> dict[str, Any]:
    """What the browser made of the page in a window of this width."""
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(page=page.as_uri(), width=width))
    (told,) = re.findall("<pre>(.*?)</pre>", loaded(frame.as_uri(), tmp_path), flags=re.S)
    found: dict[str, Any] = json.loads(unescape(told))
    return found


def loaded(address: str, tmp_path: Path) -> str:
    """The document at this address when its scripts have run."""
    assert CHROMIUM is not None
    # Without its sandbox, which root cannot have: the page is ours.
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    options += [
        f"--user-data-dir={tmp_path / 'profile'}",
        "--virtual-time-budget=5000",
        "--window-size=1400,900",
    ]
    command = [CHROMIUM, *options, "--dump-dom", address]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout


@pytest.fixture(scope="module")
def pages(run_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The report of a run, of an evaluation, and the page of a simulation, by name."""
    folder = tmp_path_factory.mktemp("pages")
    page = folder / "sim.html"
    size = ["--tasks", "2", "--siblings", "4", "--replicas", "2", "--kv-tokens", "40000"]
    assert sim(["--workload", "paper", *size, "--html", str(page)]) == 0
    sets = [
        MadeSet(name="aime24", num=30, k=16),
        MadeSet(name="a-set-of-tasks-of-our-own", num=50, k=4, failing=0.1, dirty=(3, 4)),
    ]
    made = make_folder(folder / "evaluation", *sets)
    (made / "config.toml").write_text(f'[model]\npath = "/models/{"long" * 20}/step_4"\n')
    evaluation = write_eval_report(made, reveal=False)
    return {"report": write_report(run_dir), "sim": page, "evaluation": evaluation}


@pytest.mark.parametrize("name", ["report", "sim", "evaluation"])
def test_a_phone_shows_all_of_it(pages: dict[str, Path], name: str, tmp_path: Path) -> None:
    found = looked_at(pages[name], PHONE, tmp_path)
    assert found["width"] <= PHONE, "the page itself does not scroll sideways"
    assert found["scrolling"] and all(width < PHONE for width in found["scrolling"]), "tables do"
    assert found["drawings"] and min(text["size"] for text in found["texts"]) >= MIN_TEXT_PX
    assert not [text for text in found["texts"] if text["outside"] > 1]


@pytest.mark.parametrize("name", ["report", "sim", "evaluation"])
def test_a_screen_shows_each_drawing_once(pages: dict[str, Path], name: str, tmp_path: Path) -> None:
    found, small = looked_at(pages[name], SCREEN, tmp_path), looked_at(pages[name], PHONE, tmp_path)
    assert found["width"] <= SCREEN and found["drawings"] == small["drawings"]
    assert not [text for text in found["texts"] if text["outside"] > 1]


def test_a_link_to_an_attempt_unfolds_it(pages: dict[str, Path], tmp_path: Path) -> None:
    """So do links in a page of its own: the policy of the page lets this one script run."""
    names = re.findall(r'href="#(a\d+-\d+-\d+)"', pages["evaluation"].read_text())
    page = loaded(f"{pages['evaluation'].as_uri()}#{names[-1]}", tmp_path)
    opened = re.findall(r'<details class="trajectory[^>]*?id="([^"]*)"[^>]* open=""', page)
    assert opened == [names[-1]]

"""report.html: it holds what the run recorded, and nothing that a model wrote can act in it."""

import base64
import hashlib
import json
import math
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocstar.train.reading.view.report import main, write_report
from rocstar.train.record.metrics import MetricsFileError, MetricsWriter, UnknownMetricError, read_metrics
from rocstar.train.record.report.curves import curve_svg, evaluations, main_set_of, picture_svg
from rocstar.train.record.report.sections import ReportError

from ...patience import PATIENCE_S

MakeEvaluation = Callable[..., dict[str, float]]


@pytest.fixture(scope="module")
def html(run_dir: Path) -> str:
    return write_report(run_dir).read_text()


def test_the_page_holds_what_the_run_recorded(html: str, tags_of: Any) -> None:
    text = tags_of(html).text
    for part in ("heldout avg@4 on 64 tasks", "0.29 → 0.95", "[0.21, 0.35] → [0.87, 1.00]", "easy avg@4"):
        assert part in text
    for title in (
        "Reward",
        "Tool errors in correct trajectories",
        "Length",
        "Truncated",
        "Entropy",
        "SFT loss",
    ):
        assert title in text
    for section in (
        "Where the time went",
        "Trajectories of the learner",
        "10 trajectories to read",
        "Recipe",
    ):
        assert section in text
    assert "Clipped tokens" not in text, "a curve of zeros tells nothing"
    assert 'name = "tiny <b>bold</b>"' in text, "the recipe is shown as it is written"
    assert "3,840" in text
    assert "60 RL steps, 2 stages" in text


def test_the_page_asks_for_nothing_from_outside(html: str, tags_of: Any) -> None:
    tags = tags_of(html)
    asked = {a: value for _, attributes in tags.found for a, value in attributes.items()}
    assert "src" not in asked and "srcset" not in asked
    addresses = {attributes["href"] for _, attributes in tags.found if "href" in attributes}
    assert addresses == {"data:,", "#main"}, "nothing but the page itself, and an icon that is empty"
    assert "@import" not in html
    assert "url(" not in html
    policy = next(a["content"] for tag, a in tags.found if tag == "meta" and "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_each_drawing_is_there_for_a_screen_and_for_a_phone(html: str, tags_of: Any) -> None:
    """What of this a reader sees is tested in a browser (test_pages.py), where there is one."""
    drawn = re.findall(r'<div class="(screen|phone)"><svg[^>]* viewBox="0 0 (\d+) ', html)
    screens, phones = ([int(width) for name, width in drawn if name == kind] for kind in ("screen", "phone"))
    assert len(screens) == len(phones) == tags_of(html).count("figure") and set(screens) == {1060, 520}
    assert set(phones) == {340}
    assert "@media(max-width:600px)" in html and ".phone{display:block}" in html
    assert html.count("<table>") == html.count('<div class="scroll"><table>') > 0
    assert not re.findall(r'<(?:svg|table|div)[^>]* width="', html), "no width but that of the screen"


def test_a_curve_is_one_element_not_one_for_each_point(html: str) -> None:
    assert html.count("<circle") < 60, "60 steps"


def test_the_policy_allows_exactly_the_script_of_the_page(html: str) -> None:
    script = re.findall(r"<script>(.*?)</script>", html, flags=re.S)
    assert len(script) == 1
    assert base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode() in html


def test_names_and_recipes_cannot_act_either(tmp_path: Path, tags_of: Any, attack: str) -> None:
    run = tmp_path / "<img src=x onerror=alert(1)>"
    run.mkdir()
    (run / "config.toml").write_text(attack)
    with MetricsWriter(run / "metrics.jsonl") as writer:
        for step, stage in enumerate([f"a{attack}", f"b{attack}"]):
            writer.write(
                {"reward/mean": 0.5, f"eval/x{attack.replace('/', '')}/avg@4": 0.5},
                step=step,
                stage=stage,
                phase="rl",
            )
    tags = tags_of(write_report(run).read_text())
    scripts = [attributes.get("type") for tag, attributes in tags.found if tag == "script"]
    assert scripts == ["application/json", None], "answers, and the page's own"
    assert tags.count("img") == 0


def test_a_run_without_anything_but_rows_has_a_report(tmp_path: Path, tags_of: Any) -> None:
    with MetricsWriter(tmp_path / "metrics.jsonl") as writer:
        writer.write({"loss/sft": 2.0}, step=1, stage="sft", phase="sft")
    page = write_report(tmp_path).read_text()
    assert "SFT loss" in tags_of(page).text
    assert "<h2>Trajectories</h2>" not in page
    with MetricsWriter(tmp_path / "metrics.jsonl") as writer:
        writer.write(
            {"optim/lr": math.nan, "time/step": 0.0, "ledger/generated": 0.0}, step=1, stage="rl", phase="rl"
        )
    assert "nothing recorded" in tags_of(write_report(tmp_path).read_text()).text


def test_unknown_metrics_of_another_version_are_shown(tmp_path: Path, tags_of: Any) -> None:
    row = {"step": 1, "stage": "rl", "phase": "rl", "time_s": 1.0, "future/metric": 3.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "trajectories").mkdir()
    (tmp_path / "trajectories" / "step_1.jsonl").write_text("torn")
    text = tags_of(write_report(tmp_path).read_text()).text
    assert "future/metric" in text
    assert "step_1.jsonl, line 1: not a trajectory record" in text


def test_evaluations_take_the_last_of_a_repeated_step(evaluation: MakeEvaluation) -> None:
    base = {"stage": "rl", "phase": "eval", "time_s": 0.0}
    rows = [
        base | evaluation(0.2) | {"step": 120, "stage": "sft"},
        base | evaluation(0.5) | {"step": 10},
        base | evaluation(0.6) | {"step": 10, "eval/heldout/ci_low": None},
        base | {"step": 10, "eval/odd/avg@4": None, "eval/odd/pass@4": 0.5},
    ]
    found = evaluations(rows)
    assert [(e.step, e.value, e.low) for e in found] == [(0, 0.2, pytest.approx(0.12)), (10, 0.6, None)]
    assert main_set_of(found) == "heldout"
    assert main_set_of([]) is None


def test_one_evaluation_is_no_before_and_after(tmp_path: Path, tags_of: Any) -> None:
    with MetricsWriter(tmp_path / "metrics.jsonl") as writer:
        writer.write({"eval/aime/avg@8": 0.4}, step=0, stage="sft", phase="eval")
    text = tags_of(write_report(tmp_path).read_text()).text
    assert "aime avg@8" in text
    assert "→" not in text.partition("Curves")[0]


def test_the_picture_stands_alone(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "curve.svg"
    assert main([str(run_dir), "--svg", str(target)]) == 0
    assert capsys.readouterr().out.strip() == str(target)
    root = ElementTree.fromstring(target.read_text())
    assert "prefers-color-scheme:dark" in target.read_text()
    assert len(root.findall("{*}svg")) == 2
    rows = read_metrics(run_dir / "metrics.jsonl")
    assert target.read_text() == picture_svg(rows) + "\n", "the same rows give the same picture"


def test_curve_svg_takes_listed_metrics_only(run_dir: Path) -> None:
    rows = read_metrics(run_dir / "metrics.jsonl")
    svg = curve_svg(rows, {"seq_len/mean": "mean", "seq_len/max": "longest"}, title="Length")
    assert ElementTree.fromstring(svg).find("{*}style") is not None
    with pytest.raises(UnknownMetricError):
        curve_svg(rows, {"nonsense": ""}, title="x")


def test_the_module_runs_and_refuses_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rocstar.train.reading.view.report", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert result.returncode == 2
    assert "metrics.jsonl does not exist" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_directory_without_rows_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(ReportError, match="no rows"):
        write_report(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(MetricsFileError):
        write_report(tmp_path)
    assert main([str(tmp_path)]) == 2
    assert "not a row" in capsys.readouterr().err
    assert not list(tmp_path.glob("report*"))


def test_half_a_surrogate_pair_in_a_call_is_shown_as_its_escape(run_dir: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run_dir, copy)
    path = max((copy / "trajectories").glob("*.jsonl"))
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        for turn in record["turns"]:
            for call in turn["calls"]:
                call["arguments"] = {"code": "print('\ud83d')"}
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert "\\ud83d" in write_report(copy).read_text()

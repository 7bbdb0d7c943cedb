"""A pretrained model learns here: what a run of examples/smollm2_words shows, held against its bars.

    python examples/smollm2_words/run.py --out FOLDER --model MODEL --gsm8k-train TRAIN --gsm8k-test TEST
    python benchmarks/smollm2_words.py FOLDER --given "--stages.0.steps=40"

reads FOLDER/summary.json and writes benchmarks/results/smollm2_words.json, and into docs/measured/ curves and
the ten trajectories. `--given` is what the run was given besides, `--note` what else a reader must know. The
bars: held-out avg@4 on tasks of the trained kinds up by 0.15, and the paired 95% interval above 0.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any, Final

from sandbox_bench.report import ROOT, bar, finish

RESULTS: Final = ROOT / "benchmarks" / "results" / "smollm2_words.json"
PAGES: Final = ROOT / "docs" / "measured"
GAIN: Final = 0.15


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the --out of examples/smollm2_words/run.py")
    parser.add_argument("--given", default="", help="fields that the run was given besides")
    parser.add_argument("--note", default="", help="what else a reader must know")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--pages", type=Path, default=PAGES, help="where curves and trajectories go")
    options = parser.parse_args()
    summary: dict[str, Any] = json.loads((options.folder / "summary.json").read_text())
    if "compare" not in summary:
        raise SystemExit(f"{options.folder}: the run has no evaluation behind its last step")
    (heldout,) = [one for one in summary["compare"]["sets"] if one["set"] == "heldout"]
    bars = [
        bar("held-out avg@4 of the trained kinds, gain", heldout["difference"], GAIN, at_most=False),
        bar("lower end of its paired 95% interval", heldout["interval"][0], 0.0, at_most=False),
    ]
    shutil.copy(options.folder / "curves.svg", options.pages / "smollm2_words.svg")
    shutil.copy(options.folder / "trajectories.md", options.pages / "smollm2_trajectories.md")
    sets = {one["set"]: {k: v for k, v in one.items() if k != "set"} for one in summary["compare"]["sets"]}
    result = {**summary, "compare": sets, "given": options.given, "note": options.note}
    return finish("smollm2_words", result, bars, options.out)


if __name__ == "__main__":
    sys.exit(main())

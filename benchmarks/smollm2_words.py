"""Claims of a run of examples/smollm2_words: a pretrained model learns on a CPU.

    python examples/smollm2_words/run.py --out FOLDER --model MODEL --gsm8k-train TRAIN --gsm8k-test TEST
    python benchmarks/smollm2_words.py FOLDER --given "--stages.0.steps=40" [--out FILE]

Reads FOLDER/summary.json. `--given`: the options of the run, `--note`: what else a reader must know. The
bars: held-out avg@4 on tasks of the trained kinds rises by 0.15, and the paired 95% interval is above 0.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from report import claim, finish, result_parser

GAIN: Final = 0.15


def main() -> int:
    parser = result_parser(__doc__)
    parser.add_argument("folder", type=Path, help="the --out of examples/smollm2_words/run.py")
    parser.add_argument("--given", default="", help="options of the run")
    parser.add_argument("--note", default="", help="what else a reader must know")
    parser.add_argument("--seed", type=int, default=0, help="run.seed of the run")
    options = parser.parse_args()
    summary: dict[str, Any] = json.loads((options.folder / "summary.json").read_text())
    if "compare" not in summary:
        raise SystemExit(f"{options.folder}: the run has no evaluation behind its last step")
    (heldout,) = [one for one in summary["compare"]["sets"] if one["set"] == "heldout"]
    gain, low = heldout["difference"], heldout["interval"][0]
    claims = [
        claim("SmolLM2-135M: rise of held-out avg@4 of the trained kinds", gain, at_least=GAIN),
        claim("SmolLM2-135M: lower end of the paired 95% interval of that rise", low, at_least=0),
    ]
    sets = {one["set"]: {k: v for k, v in one.items() if k != "set"} for one in summary["compare"]["sets"]}
    result = {**summary, "compare": sets, "given": options.given, "note": options.note}
    return finish("smollm2_words", result, claims, options.out, seeds=[options.seed])


if __name__ == "__main__":
    sys.exit(main())

"""How fast pairs of programs pass what they are known to pass, as root and as a user without rights.

    python benchmarks/bench_channels.py [--out FILE]

Each user runs `python -m rocstar.sandbox.attacks.channels --json`; docs/reference/threats.md quotes it.
It takes some three minutes, and means something on a quiet machine only. Started by an ordinary user it
measures for that one alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sandbox_bench.report import ROOT, bar, finish

sys.path.insert(0, str(ROOT))
from tests.sandbox.attacks.world_readable import world_readable_python

NOBODY = 65534
WANTED_S = 240.0


def measured(python: str | Path, user: int) -> dict[str, Any]:
    """What the pairs come to in a pool of that user."""
    name = "root" if user == 0 else "ordinary"
    print(f"as {name}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        out = Path(folder) / "channels.json"
        subprocess.run(
            [python, "-P", "-m", "rocstar.sandbox.attacks.channels", "--json", out],
            check=True,
            cwd="/",
            env={**os.environ, "HOME": folder} if user else None,
            **({"user": user, "group": user, "extra_groups": []} if user != os.geteuid() else {}),
        )
        return {"user": name, **json.loads(out.read_text())}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path(__file__).parent / "results" / "channels.json"
    parser.add_argument("--out", type=Path, default=default, help="where the JSON goes")
    options = parser.parse_args()
    start = time.monotonic()
    users = [measured(sys.executable, os.geteuid())]
    if os.geteuid() == 0:
        with world_readable_python() as python:
            if python is None:
                print("there is no Python that every user may read: root alone")
            else:
                users.append(measured(python, NOBODY))
    seconds = time.monotonic() - start
    bars = [bar("seconds", round(seconds, 1), WANTED_S, at_most=True)]
    return finish("channels", {"seconds": round(seconds, 1), "users": users}, bars, options.out)


if __name__ == "__main__":
    sys.exit(main())

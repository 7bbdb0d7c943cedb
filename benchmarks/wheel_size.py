"""What a wheel of rocstar holds: bytes, files, lines of Python by package, and stand-ins only tests need.

    python benchmarks/wheel_size.py --out benchmarks/results/wheel.json
    python benchmarks/wheel_size.py [WHEEL] [--commit COMMIT] [--out FILE]

Without WHEEL the checkout's own is built first, which needs what `make setup` brings. Prints one JSON object.
`installed_bytes` are those of the files themselves; `dependencies_mb` is the size on disk of what the base
dependencies come to in this environment, None where one is not installed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sandbox_bench.report import ROOT, commit

STAND_IN: Final = re.compile(r"(^|/)(fakes?\w*|testing|exchanges|recorder\w*|clairvoyant)(\.py$|/)")
"""Fakes, exchanges and recorders. `testing` is a documented fake that users may import."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", nargs="?", type=Path)
    parser.add_argument("--commit", default="", help="of which the wheel was built; default: the checkout's")
    parser.add_argument("--out", type=Path, help="file to write the object to as well")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        wheel = options.wheel or built(Path(folder))
        facts = {"commit": options.commit or commit(), **facts_of(wheel)}
    text = json.dumps(facts, indent=1)
    print(text)
    if options.out:
        options.out.write_text(f"{text}\n", encoding="utf-8")
    return 0


def built(folder: Path) -> Path:
    """The wheel of this checkout."""
    command = ["bash", str(ROOT / ".ci" / "wheel"), str(folder), sys.executable]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    [wheel] = folder.glob("*.whl")
    return wheel


def facts_of(wheel: Path) -> dict[str, Any]:
    """What the file holds; lines are counted as in the editor, blank ones and comments included."""
    with zipfile.ZipFile(wheel) as file:
        sizes = {info.filename: info.file_size for info in file.infolist() if not info.is_dir()}
        python = {name: file.read(name).decode() for name in sizes if name.endswith(".py")}
        [metadata] = [file.read(name).decode() for name in sizes if name.endswith(".dist-info/METADATA")]
    lines = {name: text.count("\n") for name, text in python.items()}
    stand_ins = sorted(name for name in lines if STAND_IN.search(name))
    return {
        "wheel": wheel.name,
        "wheel_bytes": wheel.stat().st_size,
        "installed_bytes": sum(sizes.values()),
        "files": len(sizes),
        "python_files": len(lines),
        "python_lines": sum(lines.values()),
        "python_lines_without_attack_programs": sum(
            count for name, count in lines.items() if "/attacks/" not in name
        ),
        "lines_by_package": by_package(lines),
        "stand_in_lines": sum(lines[name] for name in stand_ins),
        "stand_ins": {name.removeprefix("rocstar/"): lines[name] for name in stand_ins},
        "dependencies": required(metadata),
        "dependencies_mb": size_of_dependencies(required(metadata)),
    }


def by_package(lines: Mapping[str, int]) -> dict[str, int]:
    """Lines of each package, those of its sub-packages apart."""
    counted: Counter[str] = Counter()
    for name, count in lines.items():
        counted[name.rpartition("/")[0].removeprefix("rocstar/").replace("/", ".")] += count
    return dict(sorted(counted.items()))


def required(metadata: str) -> list[str]:
    """Requirements that hold without an extra."""
    lines = re.findall(r"^Requires-Dist: (.*)$", metadata.partition("\n\n")[0], re.MULTILINE)
    return [line for line in lines if "extra ==" not in line]


def size_of_dependencies(lines: Iterable[str]) -> float | None:
    """Megabytes on disk of these distributions and all that they ask for; None where one is missing here."""
    sizes: dict[str, int] = {}
    waiting = list(lines)
    while waiting:
        name = re.split(r"[^\w.-]", waiting.pop())[0].lower().replace("_", "-")
        if name in sizes:
            continue
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            return None
        paths = [Path(str(file.locate())) for file in distribution.files or []]
        sizes[name] = sum(path.stat().st_size for path in paths if path.is_file())
        waiting += [line for line in distribution.requires or [] if ";" not in line]
    return round(sum(sizes.values()) / 1e6, 1)


if __name__ == "__main__":
    sys.exit(main())

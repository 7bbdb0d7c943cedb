"""The pages hold together: links lead somewhere, tables can be read in a diff, cited contracts are there."""

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from .patience import PATIENCE_S

ROOT = Path(__file__).parents[1]
CONTRACTS = ROOT / "docs" / "reference" / "contracts.md"
MAX_CELL = 200
"""Characters of a table's cell as a reader sees it; more cannot be reviewed in a diff."""

SOURCES = (*("engine", "kernels", "sandbox", "train", "csrc"), *("tests", "benchmarks", "docs"))


def pages() -> list[Path]:
    """Every Markdown page of the repository; in a tree without git, all that lie in its own folders."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "*.md"]
    if shutil.which("git"):
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        if listed.returncode == 0 and listed.stdout:
            return sorted(path for name in listed.stdout.splitlines() if (path := ROOT / name).exists())
    return sorted([*ROOT.glob("*.md"), *(path for name in SOURCES for path in (ROOT / name).rglob("*.md"))])


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def lines_outside_of_code(text: str) -> Iterator[tuple[int, str]]:
    """Line numbers and lines that are not in a fenced block."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith(("```", "~~~")):
            inside = not inside
        elif not inside:
            yield number, line


def anchors(text: str) -> set[str]:
    """What GitHub makes of the headings."""
    headings = [line.lstrip("#").strip() for _, line in lines_outside_of_code(text) if line.startswith("#")]
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)|[`*]", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


def broken_links(page: Path, text: str) -> list[str]:
    """Relative links, pictures too, to a file or a heading that is not there."""
    broken = []
    for number, line in lines_outside_of_code(text):
        line = re.sub(r"`[^`]*`", "", line)
        for target in re.findall(r"\]\(([^)\s]+)\)", line) + re.findall(r'(?:src|href)="([^"]+)"', line):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = page.parent / path if path else page
            if not file.exists() or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
                broken.append(f"{number}: {target}")
    return broken


def wide_cells(text: str) -> list[str]:
    """Cells of more than MAX_CELL characters, marks of figures and targets of links not counted."""
    found = []
    for number, line in lines_outside_of_code(text):
        if not line.startswith("|"):
            continue
        shown = re.sub(r"<!--.*?-->|(?<=\])\([^)\s]*\)", "", line)
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", shown)]
        found += [f"{number}: {len(cell)} characters" for cell in cells if len(cell) > MAX_CELL]
    return found


def cited_contracts() -> dict[int, list[str]]:
    """The numbers that code and pages cite, and where."""
    cited: dict[int, list[str]] = {}
    for folder in SOURCES:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".pyi", ".cpp", ".h", ".md"} and path != Path(__file__):
                for number in re.findall(r"\bcontract\s+(\d+)", path.read_text(encoding="utf-8", errors="replace")):
                    cited.setdefault(int(number), []).append(name_of(path))
    return cited


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_tables_can_be_read(page: Path) -> None:
    assert wide_cells(page.read_text(encoding="utf-8")) == []


def test_every_cited_contract_is_on_the_page() -> None:
    numbers = [int(n) for n in re.findall(r"^## (\d+)\. ", CONTRACTS.read_text(encoding="utf-8"), re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    cited = cited_contracts()
    assert len(cited) > 5, "code cites contracts"
    assert {number: where for number, where in cited.items() if number not in numbers} == {}


def test_files_of_the_contracts_are_there() -> None:
    text = CONTRACTS.read_text(encoding="utf-8")
    for line in re.findall(r"^Where: (.*)$", text, re.MULTILINE):
        for path in re.findall(r"`([^`]+)`", line):
            assert (ROOT / path).exists(), path
    assert text.count("\nWhere: ") == len(re.findall(r"^## \d", text, re.MULTILINE))


def test_decisions_are_dated() -> None:
    text = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
    entries = re.split(r"\n\n(?=\*\*)", text.rstrip())[1:]
    stamp = r"\*\d{4}-\d\d-\d\d(, [0-9a-f]{7,})?(; changed \d{4}-\d\d-\d\d, [0-9a-f]{7,})?\*"
    undated = [entry.splitlines()[0] for entry in entries if not re.fullmatch(stamp, entry.splitlines()[-1])]
    assert len(entries) > 30 and undated == []


def load_site() -> ModuleType:
    """.ci/site.py as a module."""
    spec = importlib.util.spec_from_file_location("rocstar_site", ROOT / ".ci" / "site.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_llms_txt_lists_every_page_of_the_index_and_has_no_dead_link() -> None:
    site, path = load_site(), ROOT / "docs" / "llms.txt"
    text = path.read_text(encoding="utf-8")
    assert text == site.llms_text(), "make it anew: python .ci/site.py --llms"
    assert broken_links(path, text) == []
    listed = {(path.parent / target).resolve() for target in re.findall(r"\]\(([^)]+)\)", text)}
    assert listed >= {page for page in (ROOT / "docs").rglob("*.md") if page.name != "index.md"}
    assert all(line.rpartition("): ")[2] for line in text.splitlines() if line.startswith("- "))


def test_links_of_the_site_lead_to_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = load_site()
    monkeypatch.setattr(site, "SOURCES", tmp_path)
    assert site.copy_page(ROOT / "docs" / "guide" / "callbacks.md") == [ROOT / "examples" / "own_callback"]
    text = (tmp_path / "guide" / "callbacks.md").read_text(encoding="utf-8")
    assert "](../repository/examples/own_callback/README.md)" in text and not text.startswith("---")
    outside = site.copy_page(ROOT / "README.md")
    readme = (tmp_path / "repository" / "README.md").read_text(encoding="utf-8")
    assert ROOT / "examples" / "quickstart.py" in outside and "](examples/quickstart.py)" in readme
    assert '<img src="../guide/' in readme and "](../quickstart.svg)" in readme

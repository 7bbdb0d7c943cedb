"""Plain technical English: phrases that a reader must read twice do not come back.

`plain_words.txt` has the allowed count of each file and pattern. It may only shrink: a file with more phrases
fails, and so does a line that allows more than there are.
"""

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALLOWED = Path(__file__).with_name("plain_words.txt")

PATTERNS = {
    "what-clause": r"\b[Ww]hat (is|was|an?|the|it|they|of|c[ao]mes?|bec[ao]mes?|has|had)\b"
    r"|\b[Ww]hat (follows|remains|waits|holds|serves|ended|stands|mends)\b",
    "tell": r"\b(told|tells?|telling|is said|are said|was said)\b",
    "nobody": r"\b(nobody|somebody|anybody|everybody)\b",
    "who": r"\b(whoever|[Ww]ho (has|waits|gets|is|asks|reads|looks|comes|works|wants|speaks|listens|uses))\b",
    "first word": r"^(Of|Who|What|Whether|For) ",
    "stands": r"\b(stands?|lies|rings?|mends?|mended|let be|had better)\b",
    "own": r"of (one's|a user's|somebody's) own",
}  # fmt: skip


def texts(path: Path) -> Iterator[str]:
    """Yield the comments, docstrings and messages of a Python file, or the paragraphs of a page."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from re.sub(r"```.*?```", "", source, flags=re.DOTALL).splitlines()
        return
    yield from (match[1] for match in re.finditer(r"(?:^|\s)#\s?(.*)$", source, flags=re.MULTILINE))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.value


def files() -> list[str]:
    """Return the product's files, examples and pages, without attack programs and changelog."""
    command = ["git", "-C", str(ROOT), "ls-files", "engine", "kernels", "sandbox", "train", "examples", "*.md"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    left_out = ("sandbox/attacks/programs/", "sandbox/attacks/pairs/", "CHANGELOG.md", "docs/decisions.md")
    return [name for name in names if name.endswith((".py", ".md")) and not name.startswith(left_out)]


def count() -> Counter[str]:
    found: Counter[str] = Counter()
    for name in files():
        for text in texts(ROOT / name):
            for pattern, expression in PATTERNS.items():
                if number := len(re.findall(expression, text)):
                    found[f"{name} {pattern}"] += number
    return found


def test_phrases_only_become_fewer() -> None:
    allowed = Counter[str]()
    for line in ALLOWED.read_text(encoding="utf-8").splitlines():
        key, _, number = line.rpartition(" ")
        allowed[key] = int(number)
    found = count()
    changes = {key: (allowed[key], found[key]) for key in allowed | found if allowed[key] != found[key]}
    more = {key: change for key, change in changes.items() if change[1] > change[0]}
    assert not more, f"(allowed, found): {more}; write it in plain English, see CONTRIBUTING.md"
    assert not changes, f"(allowed, found): {changes}; lower the counts in {ALLOWED.name}"

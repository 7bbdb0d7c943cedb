"""The documentation as a site, and docs/llms.txt: .ci/site.py [--llms]

Builds docs/ into build/site by Sphinx with MyST, whose Markdown is that of GitHub; a warning is an error.
Pages link to files of the repository outside docs/: the site has a copy of each. The navigation is that
of docs/index.md.

--llms writes docs/llms.txt, which lists each page of the index with its first sentence, for language models.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SOURCES, SITE = ROOT / "build" / "docs", ROOT / "build" / "site"
COPIES = "repository"
LINK = re.compile(r"""(?<=\]\()(?P<md>[^)\s#:]+)(?=[)#])|(?<=(?:src|ref|set)=")(?P<html>[^"#:]+)(?=["#])""")
SETTINGS = {
    "project": "rocstar",
    "extensions": ["myst_parser"],
    "html_theme": "furo",
    "html_title": "rocstar",
    "html_copy_source": False,
    "myst_heading_anchors": 4,
    "highlight_language": "text",
}


def sections() -> dict[str, list[Path]]:
    """Return the pages of docs/index.md by its headings, each page once; "Start" has those before."""
    found: dict[str, list[Path]] = {}
    name = "Start"
    for line in (DOCS / "index.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            name = line[3:]
        for target in re.findall(r"\]\(([^)#]+\.md)", line):
            page = (DOCS / target).resolve()
            if all(page not in pages for pages in found.values()):
                found.setdefault(name, []).append(page)
    return found


def title_and_sentence(page: Path) -> tuple[str, str]:
    """Return the heading of a page and the first sentence of its text, without marks of links and code."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    title, _, rest = text.partition("\n")
    paragraphs = [part for part in rest.split("\n\n") if part.strip() and not re.match(r"\s*[<|#!>-]", part)]
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraphs[0].split())) if paragraphs else ""
    return title.lstrip("# "), re.split(r"(?<=\.)\s|(?<=:)$", plain)[0]


def llms_text() -> str:
    """Return docs/llms.txt."""
    lines = [f"# rocstar\n\n> {title_and_sentence(ROOT / 'README.md')[1]}"]
    for name, pages in sections().items():
        lines.append(f"\n## {name}\n")
        for page in pages:
            title, sentence = title_and_sentence(page)
            lines.append(f"- [{title}]({os.path.relpath(page, DOCS)}): {sentence}")
    return "\n".join(lines) + "\n"


def site_path(target: Path) -> str:
    """Return where the site has a file of the repository."""
    if target.is_relative_to(DOCS):
        return str(target.relative_to(DOCS))
    return f"{COPIES}/{target.relative_to(ROOT)}"


def linked(page: Path) -> Iterator[Path]:
    """Yield the existing files that a page links to."""
    for match in LINK.finditer(page.read_text(encoding="utf-8")):
        target = (page.parent / match[0]).resolve()
        if target.exists() and target != ROOT:
            yield target


def copy_page(page: Path, *, toctree: str = "") -> list[Path]:
    """Copy a page into the sources of the site, its links changed; return its links out of docs/."""
    here = site_path(page)

    def moved(match: re.Match[str]) -> str:
        target = (page.parent / match[0]).resolve()
        if not target.exists() or target == ROOT:
            return match[0]
        path = site_path(target) + ("/README.md" if target.is_dir() else "")
        return os.path.relpath(re.sub(r"\.md$", ".html", path) if match["html"] else path, os.path.dirname(here))

    text = LINK.sub(moved, page.read_text(encoding="utf-8"))
    (SOURCES / here).parent.mkdir(parents=True, exist_ok=True)
    listed = page == DOCS / "index.md" or any(page in pages for pages in sections().values())
    front = "" if listed else "---\norphan: true\n---\n\n"
    (SOURCES / here).write_text(front + text + toctree, encoding="utf-8")
    return [target for target in linked(page) if not target.is_relative_to(DOCS)]


def write_sources() -> None:
    """Write the sources of the site: docs/, and what its pages link to outside of it."""
    shutil.rmtree(SOURCES, ignore_errors=True)
    shutil.copytree(DOCS, SOURCES)
    llms = SOURCES / "llms.txt"
    llms.write_text(llms.read_text(encoding="utf-8").replace("](../", f"]({COPIES}/"), encoding="utf-8")
    listed = "\n".join(
        f"```{{toctree}}\n:hidden:\n:caption: {name}\n{chr(10).join(map(site_path, pages))}\n```\n"
        for name, pages in sections().items()
    )
    waiting = list(DOCS.rglob("*.md"))
    for page in waiting:  # grows
        for target in copy_page(page, toctree=f"\n{listed}" if page == DOCS / "index.md" else ""):
            copy = SOURCES / site_path(target)
            if target.suffix == ".md":
                waiting += [target] if target not in waiting else []
            elif target.is_dir():
                names = (f"- `{one.name}`" for one in sorted(target.iterdir()) if one.name[0] not in "._")
                copy.mkdir(parents=True, exist_ok=True)
                (copy / "README.md").write_text(
                    "\n".join(["---", "orphan: true", "---", "", f"# {target.name}", "", *names]) + "\n"
                )
            else:
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(target, copy)


def build() -> int:
    """Build the site; return the exit status: 1 after a warning."""
    from sphinx.application import Sphinx

    write_sources()
    settings = SETTINGS | {"root_doc": "index"}
    app = Sphinx(
        SOURCES, None, SITE, ROOT / "build" / "doctrees", "html", settings, None, warningiserror=True, freshenv=True
    )
    app.build()
    for path in SOURCES.rglob("*"):  # pictures of HTML tags; pages for language models
        if path.is_file():
            target = SITE / path.relative_to(SOURCES)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    return app.statuscode


if __name__ == "__main__":
    if sys.argv[1:] == ["--llms"]:
        (DOCS / "llms.txt").write_text(llms_text(), encoding="utf-8")
    else:
        sys.exit(build())

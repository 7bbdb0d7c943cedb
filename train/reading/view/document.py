"""The viewer as one HTML document: its style, its scripts as one, and stored responses instead of a server.

    static/ ──bundle──> one script, whose api.js reads the stored responses
    prerendered sections ──> <main>, readable without scripts

It loads nothing, and its policy allows its own script alone. An exported page has no server to load modules
from, so each module of static/ becomes a block, in the order of the imports. An import is a line of names or
of all (`* as name`), an export precedes a declaration; another form is a ValueError.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup, escape

from rocstar.engine.charts import DARK, LIGHT
from rocstar.train.record.report.page import TEMPLATES, page_script, style_sheet

STATIC: Final = Path(__file__).with_name("static")
_THEMES: Final = f':root[data-theme="light"]{{{LIGHT}}}:root[data-theme="dark"]{{{DARK}}}'


def page_files() -> dict[str, str]:
    """Return the files of the page by name, with the report's style sheet and tooltips."""
    texts = {
        path.name: path.read_text(encoding="utf-8") for path in sorted(STATIC.iterdir()) if path.is_file()
    }
    texts["view.css"] = style_sheet() + _THEMES + texts["view.css"]
    return texts | {"hover.js": (TEMPLATES / "hover.js").read_text(encoding="utf-8")}


_NAMED = re.compile(r'import (\{[^}]+\}) from "\./([\w.]+)";')
_WHOLE = re.compile(r'import \* as (\w+) from "\./([\w.]+)";')
_EXPORT = re.compile(r"export ((?:async )?(?:function|class|const|let)\*? (\w+))")


def bundle_scripts(modules: Mapping[str, str], first: str) -> str:
    """Return one script equal to the module `first`; `modules` has the sources by name.

    ValueError for an unknown module, a circular import, or an import that cannot be parsed.
    """
    blocks: dict[str, str] = {}
    _add(first, modules, blocks, ())
    return '(() => {\n"use strict";\nconst modules = {};\n' + "".join(blocks.values()) + "})();\n"


def _add(name: str, modules: Mapping[str, str], blocks: dict[str, str], path: tuple[str, ...]) -> None:
    """Add a module after its imports."""
    if name in blocks:
        return
    if name in path or name not in modules:
        raise ValueError(f"{' -> '.join((*path, name))}: a circle, or no such module")
    lines: list[str] = []
    names: list[str] = []
    for line in modules[name].splitlines():
        if found := _NAMED.fullmatch(line) or _WHOLE.fullmatch(line):
            _add(found[2], modules, blocks, (*path, name))
            line = f'const {found[1]} = modules["{found[2]}"];'
        elif found := _EXPORT.match(line):
            names.append(found[2])
            line = line.removeprefix("export ")
        elif re.match(r"(import|export)\b", line) or "</script" in line.lower():
            raise ValueError(f"{name}: {line!r} cannot be brought into one script")
        lines.append(line)
    told = f'modules["{name}"] = {{ {", ".join(names)} }};'
    blocks[name] = "\n".join(["{", *lines, told, "}", ""])


_MAIN: Final = '<main id="main" tabindex="-1"></main>'
_NO_SCRIPT: Final = "<noscript>"
DRAWN: Final = "drawn"
"""The element with prerendered drawings; page_report.js uses this id."""


def build_document(
    title: str, about: Mapping[str, Any], answers: Mapping[str, str], drawn: Sequence[Markup] = ()
) -> str:
    """Return the HTML of the page.

    Args:
        title: the title of the document.
        about: settings in kept.js for the other scripts: `made`, `start`, and the selection.
        answers: responses by request, as of `ExportedResponses.texts`.
        drawn: sections that are rendered before a script runs.
    """
    files = page_files()
    lines = files["index.html"].splitlines()
    begin = lines.index("<body>")
    script = (page_script() if drawn else files["hover.js"]) + bundle_scripts(files, "app.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    told = json.dumps({**about, "answers": answers}).replace("<", "\\u003c")
    head = [line for line in lines[:begin] if "static/" not in line and not line.startswith("<title>")]
    head.insert(4, f'<meta http-equiv="Content-Security-Policy" content="{policy}">')
    return "\n".join([
        *head[:-1],
        f"<title>{escape(title)}</title>",
        f"<style>{files['view.css']}</style>",
        head[-1],
        *_body(lines[begin:], drawn),
        f'<script type="application/json" id="kept">{told}</script>',
        f"<script>{script}</script>",
        "</body>",
        "</html>",
        "",
    ])  # fmt: skip


def _body(lines: Iterable[str], drawn: Sequence[Markup]) -> Iterable[str]:
    """Yield the lines of the body without its end. With prerendered sections there is no note about
    scripts."""
    article = Markup("\n").join([Markup(f'<article id="{DRAWN}">'), *drawn, Markup("</article>")])
    filled = _MAIN.replace("></main>", f">\n{article}\n</main>")
    for line in lines:
        if line.startswith(("</body>", "</html>")) or (drawn and line.startswith(_NO_SCRIPT)):
            continue
        yield filled if drawn and line == _MAIN else line

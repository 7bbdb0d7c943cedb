"""The viewer as one HTML document: its style, its scripts as one, and stored responses instead of a server.

    static/ ──bundle──> one script, whose api.js reads the stored responses
    one table ──> <main>, readable without scripts

It loads nothing, and its policy allows its own script alone. An exported page has no server to load modules
from, so each module of static/ becomes a block, in the order of the imports. An import is a line of names or
of all (`* as name`), an export precedes a declaration; another form is a ValueError.
"""

import base64
import hashlib
import json
import re
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from rocstar.engine.charts.drawing import DARK, LIGHT, STYLE, escape

STATIC: Final = Path(__file__).with_name("static")
_THEMES: Final = (
    f":root{{{LIGHT};color-scheme:light dark}}@media(prefers-color-scheme:dark){{:root{{{DARK}}}}}"
    f':root[data-theme="light"]{{{LIGHT}}}:root[data-theme="dark"]{{{DARK}}}{STYLE}'
)


def page_files() -> dict[str, str]:
    """Return the files of the page by name."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(STATIC.iterdir()) if path.is_file()}
    return texts | {"view.css": _THEMES + texts["view.css"]}


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
    exports = f'modules["{name}"] = {{ {", ".join(names)} }};'
    blocks[name] = "\n".join(["{", *lines, exports, "}", ""])


def encode_json(answer: Any) -> bytes:
    """The answer as JSON; half a surrogate pair, which no UTF-8 can carry, becomes its escape."""
    return msgspec.json.encode(_plain(answer))


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return value if value and isinstance(value[0], int | float) else [_plain(inner) for inner in value]
    return value


def pack(answer: Any) -> str:
    """Return the answer as kept.js unpacks it: compressed JSON in base 64."""
    return base64.b64encode(zlib.compress(encode_json(answer), 9)).decode()


_MAIN: Final = '<main id="main" tabindex="-1"></main>'


def build_document(title: str, about: Mapping[str, Any], answers: Mapping[str, str], table: str) -> str:
    """Return the HTML of the page.

    Args:
        title: the title of the document.
        about: settings in kept.js for the other scripts: `made`, `start`, and the selection.
        answers: responses by request, as of `ExportedResponses.texts`.
        table: the part for readers without scripts, as of `static_table`.
    """
    files = page_files()
    lines = files["index.html"].splitlines()
    begin = lines.index("<body>")
    script = bundle_scripts(files, "app.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    stored = json.dumps({**about, "answers": answers}).replace("<", "\\u003c")
    head = [line for line in lines[:begin] if "static/" not in line and not line.startswith("<title>")]
    head.insert(4, f'<meta http-equiv="Content-Security-Policy" content="{policy}">')
    # Half a surrogate pair, which a policy may write, becomes its escape.
    main = _MAIN.replace("></main>", f">{table}</main>")
    text = "\n".join([
        *head[:-1],
        f"<title>{escape(title)}</title>",
        f"<style>{files['view.css']}</style>",
        head[-1],
        *(main if line == _MAIN else line for line in lines[begin:-2]),
        f'<script type="application/json" id="kept">{stored}</script>',
        f"<script>{script}</script>",
        *lines[-2:],
        "",
    ])  # fmt: skip
    # Half a surrogate pair, which a policy may write, becomes its escape.
    return text.encode(errors="backslashreplace").decode()


def now_as_text() -> str:
    """Return the creation time of a page."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


def article_page(title: str, sections: Sequence[Mapping[str, Any]]) -> str:
    """Return a page of sections, as page_article.js shows them; its first table is read without a script."""
    cells = next(section["table"] for section in sections if "table" in section)
    about = {"made": now_as_text(), "start": "#/article", "left_out": 0}
    answers = {"article": pack({"title": title, "sections": sections})}
    table = static_table(title, cells["head"], cells["rows"])
    return build_document(f"rocstar: {title}", about, answers, table)


def static_table(title: str, head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Return the HTML of a table for readers without a script."""

    def row(tag: str, texts: Sequence[object]) -> str:
        return "".join(["<tr>", *(f"<{tag}>{escape(text)}</{tag}>" for text in texts), "</tr>"])

    body = "".join(row("td", texts) for texts in rows)
    return f'<h1>{escape(title)}</h1><div class="scroll"><table>{row("th", head)}{body}</table></div>'

"""The viewer as one document: its style, its scripts as one, and answers instead of a server.

    static/ ──bundle.py──> one script, whose api.js asks the answers
    what is drawn already ──> <main>, to be read where no script runs

It opens from a disk or a mail, loads nothing from anywhere, and its policy allows its own script alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup, escape

from rocstar.train.reading.view.bundle import bundle
from rocstar.train.reading.view.page_files import page_files
from rocstar.train.record.report.page import page_script

_MAIN: Final = '<main id="main" tabindex="-1"></main>'
_NO_SCRIPT: Final = "<noscript>"
DRAWN: Final = "drawn"
"""The element with what is drawn already; page_report.js knows it by this name."""


def document(
    title: str, about: Mapping[str, Any], answers: Mapping[str, str], drawn: Sequence[Markup] = ()
) -> str:
    """The page as text.

    Args:
        title: of the document.
        about: what kept.js tells the other scripts: `made` and `start`, and what they show of it.
        answers: by what was asked, as `KeptAnswers.texts`.
        drawn: sections that stand in the page before a script runs.
    """
    files = page_files()
    lines = files["index.html"].splitlines()
    begin = lines.index("<body>")
    script = (page_script() if drawn else files["hover.js"]) + bundle(files, "app.js")
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
    """The lines of the body without its end; with something drawn nobody is told that scripts are needed."""
    article = Markup("\n").join([Markup(f'<article id="{DRAWN}">'), *drawn, Markup("</article>")])
    filled = _MAIN.replace("></main>", f">\n{article}\n</main>")
    for line in lines:
        if line.startswith(("</body>", "</html>")) or (drawn and line.startswith(_NO_SCRIPT)):
            continue
        yield filled if drawn and line == _MAIN else line

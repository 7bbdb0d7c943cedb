"""What the page is made of, as texts."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rocstar.engine.charts import DARK, LIGHT
from rocstar.train.record.report.page import TEMPLATES, style_sheet

STATIC: Final = Path(__file__).with_name("static")
_THEMES: Final = f':root[data-theme="light"]{{{LIGHT}}}:root[data-theme="dark"]{{{DARK}}}'


def page_files() -> dict[str, str]:
    """By name: its own files, and the report's style sheet and tooltips."""
    texts = {
        path.name: path.read_text(encoding="utf-8") for path in sorted(STATIC.iterdir()) if path.is_file()
    }
    texts["view.css"] = style_sheet() + _THEMES + texts["view.css"]
    return texts | {"hover.js": (TEMPLATES / "hover.js").read_text(encoding="utf-8")}

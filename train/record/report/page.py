"""The page around the charts, from templates/. It loads nothing, and escapes its input."""

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from rocstar.engine.charts import DARK, LIGHT, STYLE
from rocstar.train.record.report.svg import NARROW

TEMPLATES = Path(__file__).with_name("templates")
SCRIPTS = ("hover.js", "page.js")
"""The scripts of the page, in order; the first adds tooltips to drawings, in the viewer too."""
MAX_TEXT = 20_000
"""Characters of one text that the page shows."""


class Drawing(Protocol):
    """Draws the same at any size, as one <svg> element."""

    def __call__(self, *, width: int, height: int) -> str: ...


@dataclass(frozen=True, slots=True)
class Drawn:
    """A drawing of a page and the words below it."""

    draw: Drawing
    caption: str
    is_wide: bool = False

    def markup(self) -> Markup:
        """As a figure of a page."""
        return figure(self.draw, self.caption, is_wide=self.is_wide)

    def svgs(self) -> tuple[str, str]:
        """The drawing for a screen and for a phone."""
        width, height = (1060, 280) if self.is_wide else (520, 250)
        return self.draw(width=width, height=height), self.draw(width=NARROW, height=240)


@cache
def _templates(folder: Path) -> Environment:
    made = Environment(
        loader=FileSystemLoader([folder, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(clipped=clipped, marked=_marked)
    return made


def rendered(name: str, **values: Any) -> Markup:
    """A template of this folder. Texts among the values are escaped, Markup is not."""
    return Markup(_templates(TEMPLATES).get_template(name).render(values))


def part(name: str, *arguments: Any, **named: Any) -> Markup:
    """A macro of parts.html, escaping in the same way."""
    return part_of(TEMPLATES / "parts.html", name, *arguments, **named)


def part_of(file: Path, name: str, *arguments: Any, **named: Any) -> Markup:
    """A macro of another page's templates, which may use those of this folder."""
    macro = getattr(_templates(file.parent).get_template(file.name).module, name)
    return Markup(macro(*arguments, **named))


def page(title: str, sections: Sequence[Markup], *, style: str = "") -> str:
    """The whole document. Its policy allows this one script by its hash and no request to anywhere, so that
    a script that slipped through the escaping would still not run. `style`: trusted rules of its own."""
    script = page_script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return rendered(
        "page.html",
        title=title,
        sections=sections,
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        script=Markup(script),
        light=LIGHT,
        dark=DARK,
        charts=Markup(STYLE),
        style=Markup(style),
    )


def page_script() -> str:
    """The scripts for tooltips of drawings and for folds."""
    return "".join((TEMPLATES / name).read_text(encoding="utf-8") for name in SCRIPTS)


def style_sheet() -> str:
    """The rules that every page of ours begins with; colours for light and dark by the reader's setting."""
    return str(rendered("page.css", light=LIGHT, dark=DARK, charts=Markup(STYLE)))


def figure(draw: Drawing, caption: str, *, is_wide: bool = False) -> Markup:
    """A drawing with its caption, in two sizes: for a screen and for a phone."""
    screen, phone = Drawn(draw, caption, is_wide).svgs()
    return part("figure", Markup(screen), Markup(phone), caption, is_wide)


def clipped(text: str, limit: int = MAX_TEXT) -> str:
    """Return about `limit` characters of the text: its beginning and its end."""
    if len(text) <= limit:
        return text
    end = limit // 4
    return f"{text[: limit - end]} [{len(text) - limit} more characters] {text[len(text) - end :]}"


def _marked(text: str) -> Markup:
    """The text with its answers marked: tags are looked for after escaping, as only this makes markup."""
    return Markup(
        re.sub(
            "&lt;answer&gt;.*?&lt;/answer&gt;",
            lambda found: f"<mark>{found.group()}</mark>",
            str(escape(text)),
            flags=re.DOTALL,
        )
    )

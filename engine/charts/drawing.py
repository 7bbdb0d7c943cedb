"""Common parts of all drawings: colours, style sheet, SVG element, round numbers and their texts.

Colours are CSS variables, so that one drawing serves a light and a dark page.
"""

import html
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

STYLE = Path(__file__).with_name("drawing.css").read_text(encoding="utf-8")
LIGHT = (
    "--paper:#ffffff;--ink:#1c2430;--soft:#5c6675;--line:#e6e9ee;--card:#f6f8fa;--good:#00795a;--bad:#b64a00;--c0:#0072b2;--c1:#d55e00;--c2:#009e73;"
    "--c3:#a6598b;--c4:#e69f00;--c5:#56b4e9;--c6:#8a8f2a;--c7:#9aa2ad;--c8:#2b4a9b"
)
DARK = (
    "--paper:#14181f;--ink:#e8ebf0;--soft:#9aa4b2;--line:#2a313b;--card:#1b212a;--good:#2fc79a;--bad:#f0803c;--c0:#4ba3e3;--c1:#f0803c;--c2:#2fc79a;"
    "--c3:#d98bbd;--c4:#f0bc4a;--c5:#8fd0f5;--c6:#c2c65a;--c7:#79828f;--c8:#8ea4ea"
)
"""Okabe and Ito's palette for colour-blind readers, with lighter variants for dark pages."""

NARROW = 340
"""Width of a drawing for a phone: there one user unit is about a pixel, so that its text can be read."""
LABEL_CHAR = 7.8
"""Widest mean width of a character of a label, in user units."""


def escape(text: object) -> str:
    """Text made safe for element content and quoted attributes."""
    return html.escape(str(text), quote=True)


def drawing(title: str, width: float, height: float, body: str, *, standalone: bool = False) -> str:
    """One <svg> element, which scales with its box.

    Args:
        title: text for screen readers; "" for a part of another drawing.
        width: user units.
        height: user units.
        body: trusted markup.
        standalone: include background and style sheet, as a .svg file needs them.
    """
    label = f' role="img" aria-label="{escape(title)}"' if title else ""
    if standalone:
        body = (
            f"<style>svg{{{LIGHT}}}@media(prefers-color-scheme:dark){{svg{{{DARK}}}}}{STYLE}</style>"
            f'<rect width="{width}" height="{height}" rx="8" fill="var(--paper)"/>{body}'
        )
    return f'<svg xmlns="http://www.w3.org/2000/svg" class="rc" viewBox="0 0 {width} {height}"{label}>{body}</svg>'


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten apart) that enclose [low, high]."""
    span = high - low if high > low else abs(high) or 1.0
    raw = span / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, max(last, first + 1) + 1)]


class Drawing(Protocol):
    """Draws the same at any size, as one <svg> element."""

    def __call__(self, *, width: int, height: int) -> str: ...


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing of a page and the words below it."""

    draw: Drawing
    caption: str
    is_wide: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the drawing for a screen and for a phone, as dom.js shows it."""
        width, height = (1060, 280) if self.is_wide else (520, 250)
        return {
            "screen": self.draw(width=width, height=height),
            "phone": self.draw(width=NARROW, height=240),
            "caption": self.caption,
            "wide": self.is_wide,
        }


def format_value(value: float, unit: str) -> str:
    """A value as a person writes it: `4.1%`, `0.83`, `1,240`, `3.2 s`."""
    if unit == "share":
        return f"{100 * value:.0f}%" if abs(value) >= 0.0995 or value == 0 else f"{100 * value:.1f}%"
    suffix = " s" if unit == "s" else ""
    if abs(value) >= 1000:
        return f"{value:,.0f}{suffix}"
    if abs(value) >= 100 or value == 0:
        return f"{value:.0f}{suffix}"
    if abs(value) < 0.01:
        return f"{value:.2g}{suffix}"
    return f"{value:.1f}{suffix}" if abs(value) >= 10 else f"{value:.2f}{suffix}"

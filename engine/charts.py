"""Common parts of all drawings: colours, style sheet, SVG element, round numbers.

Colours are CSS variables, so that one drawing serves a light and a dark page.
"""

import html
import math

STYLE = """
.rc{font:12px/1.3 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;fill:var(--ink)}
.rc .title{font-size:14px;font-weight:600;fill:var(--ink)}
.rc .unit,.rc .tick,.rc .mark-label{fill:var(--soft)}
.rc .tick{font-size:11px;font-variant-numeric:tabular-nums}
.rc .mark-label{font-size:11px}
.rc .label{font-weight:600}
.rc .grid{stroke:var(--line);stroke-width:1}
.rc .axis{stroke:var(--soft);stroke-width:1}
.rc .mark{stroke:var(--soft);stroke-width:1;stroke-dasharray:3 3}
.rc .curve{fill:none;stroke-width:2.2;stroke-linejoin:round;stroke-linecap:round}
.rc .dots{fill:none;stroke-linecap:round}
.rc .cross{stroke:var(--soft);stroke-width:1;visibility:hidden}
"""
LIGHT = (
    "--paper:#ffffff;--ink:#1c2430;--soft:#5c6675;--line:#e6e9ee;--c0:#0072b2;--c1:#d55e00;--c2:#009e73;"
    "--c3:#a6598b;--c4:#e69f00;--c5:#56b4e9;--c6:#8a8f2a;--c7:#9aa2ad;--c8:#2b4a9b"
)
DARK = (
    "--paper:#14181f;--ink:#e8ebf0;--soft:#9aa4b2;--line:#2a313b;--c0:#4ba3e3;--c1:#f0803c;--c2:#2fc79a;"
    "--c3:#d98bbd;--c4:#f0bc4a;--c5:#8fd0f5;--c6:#c2c65a;--c7:#79828f;--c8:#8ea4ea"
)
"""Okabe and Ito's palette for colour-blind readers, with lighter variants for dark pages."""


def escape(text: object) -> str:
    """Text made safe for element content and quoted attributes."""
    return html.escape(str(text), quote=True)


def drawing(
    title: str, width: float, height: float, body: str, *, data: str = "", standalone: bool = False
) -> str:
    """One <svg> element, which scales with its box.

    Args:
        title: text for screen readers; "" for a part of another drawing.
        width: user units.
        height: user units.
        body: trusted markup.
        data: JSON for the script of a page.
        standalone: include background and style sheet, as a .svg file needs them.
    """
    label = f' role="img" aria-label="{escape(title)}"' if title else ""
    attribute = f' data-chart="{escape(data)}"' if data else ""
    if standalone:
        body = (
            f"<style>svg{{{LIGHT}}}@media(prefers-color-scheme:dark){{svg{{{DARK}}}}}{STYLE}</style>"
            f'<rect width="{width}" height="{height}" rx="8" fill="var(--paper)"/>{body}'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="rc" viewBox="0 0 {width} {height}"'
        f"{label}{attribute}>{body}</svg>"
    )


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten apart) that enclose [low, high]."""
    span = high - low if high > low else abs(high) or 1.0
    raw = span / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, max(last, first + 1) + 1)]

"""The page around the charts: style sheet, script and the HTML skeleton. It loads nothing from anywhere."""

import base64
import hashlib
from collections.abc import Container, Iterable, Sequence
from typing import Protocol

from rocstar.train.report_svg import DARK, LIGHT, NARROW, STYLE, escape

CSS = f"""
:root{{{LIGHT};--card:#f6f8fa;--good:#00795a;--bad:#b64a00;color-scheme:light dark}}
@media(prefers-color-scheme:dark){{:root{{{DARK};--card:#1b212a;--good:#2fc79a;--bad:#f0803c}}}}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--paper);color:var(--ink);line-height:1.5;
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}}
main{{max-width:1120px;margin:0 auto;padding:28px 20px 60px}}
h1{{font-size:26px;margin:0}} h2{{font-size:19px;margin:44px 0 4px}}
p{{margin:4px 0 12px}} .soft{{color:var(--soft)}} a{{color:var(--c0)}}
.tiles{{display:grid;grid-template-columns:repeat(auto-fit,minmax(200px,1fr));gap:14px;margin-top:22px}}
.tile{{background:var(--card);border-radius:10px;padding:14px 16px}}
.tile .name{{color:var(--soft);font-size:13px}}
.tile .value{{font-size:23px;font-weight:650;font-variant-numeric:tabular-nums;white-space:nowrap}}
.tile .detail{{color:var(--soft);font-size:13px}}
.tile.hero .value{{font-size:26px;color:var(--c0)}}
.charts{{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(440px,100%),1fr));gap:18px;margin-top:12px}}
figure{{margin:0;background:var(--paper);border:1px solid var(--line);border-radius:10px;padding:8px 8px 4px}}
figure.wide{{grid-column:1/-1}}
figcaption{{color:var(--soft);font-size:13px;padding:0 10px 8px}}
svg.rc{{display:block;width:100%;height:auto;touch-action:pan-y}}
.phone{{display:none}}
{STYLE}
.sharebar{{display:flex;height:22px;border-radius:6px;overflow:hidden;margin:10px 0 6px}}
.sharebar i{{display:block}}
.legend{{list-style:none;display:flex;flex-wrap:wrap;gap:4px 16px;padding:0;margin:0 0 10px;font-size:13px}}
.legend b{{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:6px}}
#tip{{position:fixed;display:none;pointer-events:none;background:var(--paper);border:1px solid var(--soft);
border-radius:6px;padding:6px 9px;font-size:12.5px;box-shadow:0 3px 12px #0003;z-index:9;white-space:nowrap}}
#tip b{{display:inline-block;width:8px;height:8px;border-radius:2px;margin-right:6px}}
#tip .head{{font-weight:600}}
button{{font:inherit;font-size:13px;color:var(--ink);background:var(--card);border:1px solid var(--line);
border-radius:6px;padding:3px 10px;cursor:pointer}}
details.trajectory{{border:1px solid var(--line);border-radius:10px;margin:10px 0;overflow:hidden}}
details.trajectory>summary{{display:flex;flex-wrap:wrap;gap:4px 10px;align-items:baseline;padding:9px 14px;
background:var(--card);cursor:pointer;list-style:none}}
details.trajectory>summary::-webkit-details-marker{{display:none}}
details.trajectory>summary::before{{content:"▸";color:var(--soft)}}
details.trajectory[open]>summary::before{{content:"▾"}}
.question-line{{flex:1 1 260px;min-width:0;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}}
.chip{{font-size:12px;font-weight:600;border-radius:20px;padding:1px 9px;border:1px solid currentColor;
white-space:nowrap}}
.good{{color:var(--good)}} .bad{{color:var(--bad)}} .quiet{{color:var(--soft)}}
.body{{padding:12px 16px 16px}}
.facts{{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;margin:0 0 12px;font-size:14px}}
.facts dt{{color:var(--soft)}} .facts dd{{margin:0;overflow-wrap:anywhere}}
.turn{{border-left:3px solid var(--c0);padding:2px 0 2px 12px;margin:14px 0}}
.turn>.who,.call>.who{{font-size:12px;color:var(--soft)}}
pre{{margin:4px 0;white-space:pre-wrap;overflow-wrap:anywhere;
font:13px/1.45 ui-monospace,Menlo,Consolas,monospace}}
.call{{background:var(--card);border-radius:8px;padding:8px 12px;margin:8px 0}}
.call .result{{border-left:3px solid var(--good);padding-left:10px}}
.call.error .result{{border-left-color:var(--bad)}}
mark{{background:none;color:var(--good);font-weight:650}}
.wrong mark{{color:var(--bad)}}
table{{border-collapse:collapse;font-size:13.5px;width:100%}}
th,td{{text-align:left;padding:3px 12px 3px 0;border-bottom:1px solid var(--line);vertical-align:top}}
td.n,th.n{{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}}
.fold>summary{{cursor:pointer;color:var(--soft);margin:8px 0}}
.scroll{{overflow-x:auto}} .scroll td:last-child{{min-width:240px}}
footer{{margin-top:44px;color:var(--soft);font-size:13px;overflow-wrap:anywhere}}
@media(max-width:600px){{
main{{padding:20px 12px 40px}}
figure{{padding:6px 2px 2px}}
.screen{{display:none}} .phone{{display:block}}
.tiles{{grid-template-columns:1fr 1fr;gap:10px}} .tile{{padding:10px 12px}}
.tile .value,.tile.hero .value{{font-size:20px;white-space:normal}}
}}
"""

JS = """
"use strict";
const tip = document.getElementById("tip");
for (const svg of document.querySelectorAll("svg[data-chart]")) {
  const data = JSON.parse(svg.dataset.chart), cross = svg.querySelector(".cross");
  for (const kind of ["pointermove", "pointerdown"]) svg.addEventListener(kind, (event) => {
    const box = svg.getBoundingClientRect();
    const at = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
    let best = 0;
    data.x.forEach((x, i) => { if (Math.abs(x - at) < Math.abs(data.x[best] - at)) best = i; });
    cross.setAttribute("x1", data.x[best]);
    cross.setAttribute("x2", data.x[best]);
    cross.style.visibility = "visible";
    tip.replaceChildren();
    const head = tip.appendChild(document.createElement("div"));
    head.className = "head";
    head.textContent = data.head[best];
    for (const row of data.rows) {
      if (!row.values[best]) continue;
      const line = tip.appendChild(document.createElement("div"));
      line.appendChild(document.createElement("b")).style.background = `var(--c${row.color})`;
      line.append(`${row.label} ${row.values[best]}`);
    }
    tip.style.display = "block";
    const left = event.clientX + 16 + tip.offsetWidth > innerWidth
      ? event.clientX - 16 - tip.offsetWidth : event.clientX + 16;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${event.clientY + 14}px`;
  });
  svg.addEventListener("pointerleave", () => {
    tip.style.display = "none";
    cross.style.visibility = "hidden";
  });
}
const button = document.getElementById("unfold");
if (button) button.addEventListener("click", () => {
  const all = [...document.querySelectorAll("details.trajectory")], open = all.some((d) => !d.open);
  for (const d of all) d.open = open;
  button.textContent = open ? "fold all" : "unfold all";
});
"""


class Drawing(Protocol):
    """Draws the same at any size, as one <svg> element."""

    def __call__(self, *, width: int, height: int) -> str: ...


def page(title: str, sections: Sequence[str]) -> str:
    """The whole document. Its policy allows this one script by its hash and no request to anywhere, so that
    a script that slipped through the escaping would still not run."""
    digest = base64.b64encode(hashlib.sha256(JS.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{CSS}</style></head><body><main>\n"
        + "\n".join(sections)
        + f'\n</main><div id="tip"></div><script>{JS}</script></body></html>\n'
    )


def tile(name: str, value: str, detail: str = "", *, is_hero: bool = False) -> str:
    """One number of the headline; all texts are escaped here."""
    return (
        f'<div class="tile{" hero" if is_hero else ""}"><div class="name">{escape(name)}</div>'
        f'<div class="value">{escape(value)}</div><div class="detail">{escape(detail)}</div></div>'
    )


def figure(draw: Drawing, caption: str, *, is_wide: bool = False) -> str:
    """A drawing (trusted markup) with its caption (escaped here): once for a screen, once for a phone, where
    the first would shrink until nobody can read it."""
    width, height = (1060, 280) if is_wide else (520, 250)
    screen, phone = draw(width=width, height=height), draw(width=NARROW, height=240)
    return (
        f'<figure{" class=wide" if is_wide else ""}><div class="screen">{screen}</div>'
        f'<div class="phone">{phone}</div><figcaption>{escape(caption)}</figcaption></figure>'
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Container[int] = ()) -> str:
    """A table that scrolls by itself where it is wider than the screen; columns `numbers` are aligned right.
    All texts are escaped here."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=n' if k in numbers else ''}>{escape(cell)}</{tag}>"
            for k, cell in enumerate(cells)
        )

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{line(head, "th")}</tr>{body}</table></div>'

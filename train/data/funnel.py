"""The outcome of every row of a build: a table, JSON and a drawing.

Invariant: the rows that were read are those that were kept and those that were dropped, each for one reason.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rocstar.engine.charts.drawing import drawing, escape
from rocstar.sandbox.command_line import format_error
from rocstar.train.recipe.errors import ConfigError

FUNNEL: Final = "funnel.json"
VERSION: Final = 1
REASONS: Final[Mapping[str, str]] = tomllib.loads(Path(__file__).with_name("reasons.toml").read_text(encoding="utf-8"))
"""The reasons to drop a row, in their order; a row has the first that applies."""
_BAR_WIDTH, _BAR_HEIGHT, _ROW_HEIGHT, _LABELS = 560, 17, 22, 230


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceInfo:
    """A source as it was read."""

    name: str
    source: str
    revision: str
    licence: str
    files: str
    """Hash of the local files that were read; "" for the hub."""
    left_out: str = ""
    """The reason that nothing of it was read; "" if it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Funnel:
    """The counts of one build."""

    kind: str
    sources: Sequence[SourceInfo]
    read: Mapping[str, int]
    """Rows, by source."""
    kept: Mapping[str, int]
    dropped: Mapping[str, Mapping[str, int]]
    """By reason, then by source; reasons in their order."""
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name, count in self.read.items():
            lost = sum(by_source.get(name, 0) for by_source in self.dropped.values())
            if count != self.kept.get(name, 0) + lost:
                raise ValueError(f"{name}: {count} rows read, {self.kept.get(name, 0)} kept and {lost} dropped")

    def as_json(self) -> dict[str, Any]:
        return {"v": VERSION, **asdict(self)}

    def steps(self) -> Iterator[tuple[str, int, int]]:
        """Yield (reason, dropped rows, rows left) of each reason that dropped a row."""
        left = sum(self.read.values())
        for reason in REASONS:
            if lost := sum(self.dropped.get(reason, {}).values()):
                left -= lost
                yield reason, lost, left

    def as_text(self) -> str:
        """Return a table."""
        total = sum(self.read.values())
        lines = [f"{'read':18}{'':10}{total:>10,}"]
        lines += [f"{reason:18}{-lost:>10,}{left:>10,}  {REASONS[reason]}" for reason, lost, left in self.steps()]
        lines.append(f"{'kept':18}{'':10}{sum(self.kept.values()):>10,}  {self.kind}")
        lines.append("")
        width = max([6, *(len(one.name) for one in self.sources)])
        lines.append(f"{'source':{width}}{'read':>10}{'kept':>10}  licence, revision")
        for one in self.sources:
            read, kept = self.read.get(one.name, 0), self.kept.get(one.name, 0)
            about = one.left_out or f"{one.licence}, {one.revision or one.files[:19]}"
            lines.append(f"{one.name:{width}}{read:>10,}{kept:>10,}  {about}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def as_svg(self) -> str:
        """Draw a bar for the rows left after each reason, in the colours of the other drawings."""
        total = max(1, sum(self.read.values()))
        bars = [("read", 0, sum(self.read.values())), *self.steps()]
        parts = []
        for k, (reason, lost, left) in enumerate(bars):
            y = 34 + k * _ROW_HEIGHT
            width = _BAR_WIDTH * left / total
            count = f"{left:,}" + (f"  (-{lost:,})" if lost else "")
            parts.append(
                f'<text class="label" x="{_LABELS - 8}" y="{y + 13}" text-anchor="end">{reason}</text>'
                f'<rect x="{_LABELS}" y="{y}" width="{width:.1f}" height="{_BAR_HEIGHT}" fill="var(--c0)"/>'
                f'<text class="tick" x="{_LABELS + width + 6:.1f}" y="{y + 13}">{count}</text>'
            )
        title = f'<text class="title" x="12" y="20">{escape(self.kind)}: rows left after each reason</text>'
        height = 44 + len(bars) * _ROW_HEIGHT
        body = title + "".join(parts)
        return drawing("The funnel of a build", _LABELS + _BAR_WIDTH + 140, height, body, standalone=True)


def read_funnel(folder: Path) -> Funnel:
    """Load the funnel of a build's folder. ConfigError if it has none."""
    path = folder / FUNNEL if folder.is_dir() else folder
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if fields.pop("v") != VERSION:
            raise ValueError("another version")
        fields["sources"] = [SourceInfo(**one) for one in fields["sources"]]
        return Funnel(**fields)
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{str(folder)!r} is not a finished build ({format_error(error)}); pass a folder of `rocstar data build`"
        ) from None

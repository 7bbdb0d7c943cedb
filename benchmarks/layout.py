"""The layout of each package in figures: rooms, floors, and arrows between rooms.

    python benchmarks/layout.py [CHECKOUT]

A room is a folder or a file directly in the package; an arrow leads from a room to another one that a module
of it imports, wherever in the module and also for types alone; a room is one floor above the highest that
it imports. Rooms that import each other in a circle are named. Needs no installed rocstar: it reads text.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGES = ("train", "engine", "sandbox", "kernels")


@dataclass(frozen=True, slots=True)
class Layout:
    """The figures of one package."""

    rooms: int
    arrows: int
    floors: int | None
    """None where rooms import each other in a circle."""
    circle: list[str]


def modules(root: Path, package: str) -> dict[str, Path]:
    """The modules of a package by dotted name; attack programs are data."""
    paths = [path for path in (root / package).rglob("*.py") if not is_attack(path, root)]
    return {dotted(path, root): path for path in paths}


def is_attack(path: Path, root: Path) -> bool:
    parts = path.relative_to(root).parts
    return parts[:2] == ("sandbox", "attacks") and (len(parts) > 3 or not path.stem.islower())


def dotted(path: Path, root: Path) -> str:
    parts = ["rocstar", *path.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Modules of `known` that the file at `path` imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            yield from (one for one in (name, name.rpartition(".")[0]) if one in known)


def arrows(root: Path, package: str) -> dict[str, set[str]]:
    """The rooms that each room imports."""
    known = modules(root, package)
    found: dict[str, set[str]] = {room(name): set() for name in known if room(name)}
    for name, path in known.items():
        targets = {room(other) for other in imported(path, known)} - {room(name), ""}
        if room(name):
            found[room(name)] |= targets
    return found


def room(name: str) -> str:
    """The room of a module; "" for the package itself."""
    parts = name.split(".")
    return parts[2] if len(parts) > 2 else ""


def layout(root: Path, package: str) -> Layout:
    found = arrows(root, package)
    count = sum(map(len, found.values()))
    try:
        order = list(TopologicalSorter(found).static_order())
    except CycleError as error:
        return Layout(len(found), count, None, list(error.args[1]))
    floors: dict[str, int] = {}
    for one in order:
        floors[one] = 1 + max((floors[other] for other in found.get(one, ())), default=0)
    return Layout(len(found), count, max(floors.values(), default=0), [])


def main() -> None:
    parser = argparse.ArgumentParser(description="The layout of each package in figures.")
    parser.add_argument("checkout", nargs="?", type=Path, default=Path(__file__).parents[1])
    options = parser.parse_args()
    for name in PACKAGES:
        one = layout(options.checkout.resolve(), name)
        floors = f"{one.floors} floors" if one.floors else f"a circle: {' -> '.join(one.circle)}"
        print(f"{name + '/':9} {one.rooms:3} rooms  {one.arrows:3} arrows  {floors}")


if __name__ == "__main__":
    main()

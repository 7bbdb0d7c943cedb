"""Names of places in the source that stay valid when files and lines move.

A symbol is a function, a class, or a name that a module or a class assigns to. Its name is that in its module
(`draw`, `Learner.step`), or, if several symbols have it, the shortest unique end of the dotted name
(`roc.draw`). A fragment of a symbol is an expression or a simple statement, compared as syntax: line breaks,
quotes, redundant parentheses and comments do not matter.

Each name must exist exactly once; LookupError names the one that does not.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("engine", "kernels", "sandbox", "train")


@dataclass(frozen=True, slots=True)
class Symbol:
    path: Path
    node: ast.stmt


def module_name(path: Path) -> str:
    """Return the dotted name under which a file of the packages is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(["rocstar", *(parts[:-1] if parts[-1] == "__init__" else parts)])


def find_symbol(name: str) -> Symbol:
    """Return the one symbol of this name in the packages."""
    found = _symbols().get(name, [])
    if not found:
        raise LookupError(f"no symbol {name!r} in {', '.join(PACKAGES)}: was it renamed or removed?")
    if len(found) > 1:
        places = ", ".join(f"{one.path.relative_to(ROOT)}:{one.node.lineno}" for one in found)
        raise LookupError(f"{len(found)} symbols have the name {name!r} ({places}): name the module or class too")
    return found[0]


def replaced(name: str, old: str, new: str) -> str:
    """Return the source of the symbol's file with the one fragment `old` of the symbol replaced by `new`."""
    symbol = find_symbol(name)
    before, after = _fragment(old), _fragment(new)
    wanted: ast.AST = before
    form = "{}"
    if isinstance(before, ast.Expr) and isinstance(after, ast.Expr):
        # In parentheses a value stays one operand beside any operator.
        wanted, form = before.value, "({})"
    dump = ast.dump(wanted)
    alike = (node for node in ast.walk(symbol.node) if type(node) is type(wanted))
    found = [node for node in alike if ast.dump(node) == dump]
    place = f"{name!r} ({symbol.path.relative_to(ROOT)})"
    if len(found) != 1:
        raise LookupError(f"{place} has {len(found)} times {old!r}, not once: was it edited?")
    source = symbol.path.read_bytes()
    start, end = _span(found[0], source)
    # For plain text within an f-string Python gives the place of the whole f-string.
    if ast.dump(_fragment(form.format(source[start:end].decode()))) != ast.dump(before):
        raise LookupError(f"{place} has {old!r} where it cannot be replaced alone: choose what is around it")
    result = (source[:start] + form.format(ast.unparse(after)).encode() + source[end:]).decode()
    ast.parse(result)  # a syntax error would fail every test, and prove nothing
    return result


def find_tests(name: str) -> str:
    """Return pytest's selection for `test_file.py` or `test_file.py::test`, anywhere in tests/.

    If several files have that name, a folder goes before it: `train/test_file.py` is anywhere in `train`.
    """
    file, _, test = name.partition("::")
    *folders, file_name = file.split("/")
    found = [
        path
        for path in _test_files().get(file_name, [])
        if all(folder in path.relative_to(ROOT).parts for folder in folders)
    ]
    if not found:
        raise LookupError(f"no test file {file!r} in tests: was it renamed or removed?")
    if len(found) > 1:
        places = ", ".join(str(path.relative_to(ROOT)) for path in found)
        raise LookupError(f"{len(found)} test files have the name {file!r} ({places}): name a folder too")
    selection = found[0].relative_to(ROOT).as_posix()
    if not test:
        return selection
    if test.partition("[")[0] not in _tests(found[0]):
        raise LookupError(f"no test {test!r} in {selection}: was it renamed or removed?")
    return f"{selection}::{test}"


@cache
def _test_files() -> dict[str, list[Path]]:
    """Return the test files by name."""
    files: dict[str, list[Path]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        files.setdefault(path.name, []).append(path)
    return files


@cache
def _tests(path: Path) -> set[str]:
    return {"::".join(names) for names, _ in _definitions(ast.parse(path.read_bytes()).body)}


@cache
def _symbols() -> dict[str, list[Symbol]]:
    """Return every symbol under each of its names: those of `a.b.C.d` are `C.d`, `b.C.d` and `a.b.C.d`."""
    symbols: dict[str, list[Symbol]] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            module = module_name(path).split(".")
            for names, node in _definitions(ast.parse(path.read_bytes(), filename=str(path)).body):
                for start in range(len(module) + 1):
                    symbols.setdefault(".".join([*module[start:], *names]), []).append(Symbol(path, node))
    return symbols


def _definitions(body: Sequence[ast.stmt], outer: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], ast.stmt]]:
    """Yield the definitions of a module's or a class's body, and of the classes in it."""
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield (*outer, name), node
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield (*outer, name), node
        if isinstance(node, ast.ClassDef):
            yield from _definitions(node.body, (*outer, node.name))


def _fragment(text: str) -> ast.stmt:
    """Parse the text as one statement; an expression is one too."""
    try:
        (statement,) = ast.parse(text).body
    except (SyntaxError, ValueError) as error:
        raise LookupError(f"{text!r} is neither an expression nor one statement") from error
    if hasattr(statement, "body"):
        raise LookupError(f"{text!r} has a block: choose its condition or a statement in it")
    return statement


def _span(node: ast.AST, source: bytes) -> tuple[int, int]:
    """Return the first byte of the node in the source, and the byte after its last."""
    begins = [0]
    for line in source.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    return begins[node.lineno - 1] + node.col_offset, begins[node.end_lineno - 1] + node.end_col_offset

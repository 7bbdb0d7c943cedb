"""A name finds its symbol, fragment or test wherever it lies; one that fits none, or several, is refused."""

from pathlib import Path

import pytest

from .symbols import find_symbol, find_tests, replaced

ROC = """\
LIMIT: int = 3


@decorated(depth=1)
def draw(items):
    # Longest first: "ä" is one letter but two bytes.
    chosen = sorted(items, key=lambda item: ("ä", len(item)), reverse=True)[
        :LIMIT  # not more
    ]
    note(chosen); note(items)
    return f"{len(chosen)} of {len(items)}"


class Learner:
    rate = 1.0

    async def step(self):
        await self.settle()
        return self.rate * 2
"""


def tree(root: Path, **files: str) -> Path:
    """A tree with these files, whose names are dotted."""
    for name, text in files.items():
        path = root / (name.replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def test_a_name_of_several_symbols_is_refused_until_the_module_is_named(tmp_path: Path) -> None:
    root = tree(tmp_path, **{"train.roc": "def draw(): ...", "train.plot.svg": "\ndef draw(): ..."})
    with pytest.raises(LookupError, match=r"2 symbols .* 'draw' \(train/plot/svg.py:2, train/roc.py:1\)"):
        find_symbol("draw", root)
    assert find_symbol("roc.draw", root).path == root / "train/roc.py"
    with pytest.raises(LookupError, match="no symbol 'halt'"):
        find_symbol("halt", root)


@pytest.mark.parametrize(
    ("symbol", "old", "new", "text", "text_with_new"),
    [
        # Line breaks, quotes and comments of the source do not matter.
        (
            "draw",
            "sorted(items, key=lambda item: ('ä', len(item)), reverse=True)[:LIMIT]",
            "items",
            ROC[ROC.index("sorted(") : ROC.index("    note(")],
            "(items)\n",
        ),
        ("draw", "note(items)", "pass", "note(chosen); note(items)", "note(chosen); pass"),
        ("draw", "1", "2", "depth=1", "depth=(2)"),
        ("LIMIT", "3", "0", "= 3", "= (0)"),
        # What binds less tightly than its new neighbours stays one operand.
        ("Learner.step", "self.rate", "self.rate + 1", "self.rate * 2", "(self.rate + 1) * 2"),
    ],
)
def test_a_fragment_is_replaced_as_syntax(
    symbol: str, old: str, new: str, text: str, text_with_new: str, tmp_path: Path
) -> None:
    root = tree(tmp_path, **{"train.roc": ROC})
    assert replaced(symbol, old, new, root) == ROC.replace(text, text_with_new)


@pytest.mark.parametrize(
    ("symbol", "fragment", "message"),
    [
        ("draw", "items", r"'draw' \(train/roc.py\) has 3 times 'items', not once"),
        ("Learner", "note(items)", r"has 0 times 'note\(items\)', not once"),
        ("draw", "1.0 /", "is neither an expression nor one statement"),
        ("draw", "if items: pass", "has a block"),
        ("draw", "' of '", "where it cannot be replaced alone"),
    ],
)
def test_any_other_fragment_is_refused(symbol: str, fragment: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(LookupError, match=message):
        replaced(symbol, fragment, "0", tree(tmp_path, **{"train.roc": ROC}))


def test_a_test_is_found_wherever_its_file_lies(tmp_path: Path) -> None:
    text = "def test_it(): ...\n\nclass TestAll:\n    def test_one(self): ...\n"
    root = tree(tmp_path, **{"tests.train.deep.test_roc": text, "tests.sandbox.test_roc": ""})
    for test in ["test_it", "test_it[2-b]", "TestAll::test_one"]:
        assert find_tests(f"train/test_roc.py::{test}", root) == f"tests/train/deep/test_roc.py::{test}"
    for name, message in [
        ("train/test_roc.py::test_one", r"no test 'test_one' in tests/train/deep/test_roc.py"),
        ("test_other.py", r"no test file 'test_other.py'"),
        ("test_roc.py", r"2 test files .*'test_roc.py'.*tests/sandbox/test_roc.py"),
    ]:
        with pytest.raises(LookupError, match=message):
            find_tests(name, root)

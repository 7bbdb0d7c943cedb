"""A name finds its symbol, fragment or test wherever it lies, or says what is not there exactly once."""

from pathlib import Path

import pytest

from .symbols import find_symbol, find_tests, module_name, replaced

ROC = '''\
LIMIT: int = 3


@decorated(depth=1)
def draw(items):
    """Some of the items."""
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
'''


def tree(root: Path, **files: str) -> Path:
    """A tree with these files, whose names are dotted."""
    for name, text in files.items():
        path = root / (name.replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize("module", ["train.roc", "engine.deep.down.other", "kernels.__init__"])
def test_a_symbol_is_found_wherever_its_file_lies(module: str, tmp_path: Path) -> None:
    root = tree(tmp_path, **{module: ROC})
    path = root / (module.replace(".", "/") + ".py")
    for name in ["draw", "LIMIT", "Learner", "Learner.step", "Learner.rate"]:
        assert find_symbol(name, root).path == path
    assert replaced("Learner.step", "self.rate * 2", "self.rate", root) == ROC.replace(
        "self.rate * 2", "(self.rate)"
    )


def test_a_name_of_several_symbols_is_refused_until_the_module_is_named(tmp_path: Path) -> None:
    root = tree(tmp_path, **{"train.roc": "def draw(): ...", "train.plot.svg": "\ndef draw(): ..."})
    with pytest.raises(LookupError, match=r"2 symbols .* 'draw' \(train/plot/svg.py:2, train/roc.py:1\)"):
        find_symbol("draw", root)
    assert find_symbol("roc.draw", root).path == root / "train/roc.py"
    assert find_symbol("plot.svg.draw", root).path == root / "train/plot/svg.py"


@pytest.mark.parametrize("name", ["step", "Learner.halt", "lot.draw", "chosen"])
def test_a_name_of_no_symbol_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(LookupError, match=f"no symbol '{name}'"):
        find_symbol(name, tree(tmp_path, **{"train.roc": ROC}))


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
        ("draw", "('ä', len(item))", "len(item)", '("ä", len(item))', "(len(item))"),
        ("draw", "note(items)", "pass", "note(chosen); note(items)", "note(chosen); pass"),
        ("draw", "1", "2", "depth=1", "depth=(2)"),
        ("LIMIT", "3", "0", "= 3", "= (0)"),
        ("Learner", "1.0", "2.0", "= 1.0", "= (2.0)"),
        ("Learner.step", "await self.settle()", "pass", "await self.settle()", "pass"),
        # What binds less tightly than its new neighbours stays one operand.
        ("Learner.step", "self.rate", "self.rate + 1", "self.rate * 2", "(self.rate + 1) * 2"),
    ],
)
def test_a_fragment_is_replaced_as_syntax(
    symbol: str, old: str, new: str, text: str, text_with_new: str, tmp_path: Path
) -> None:
    root = tree(tmp_path, **{"train.roc": ROC})
    assert replaced(symbol, old, new, root) == ROC.replace(text, text_with_new)


def test_a_fragment_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    root = tree(
        tmp_path, **{"train.roc": "def a():\n    return f(1)\n\ndef b():\n    return f( 1 ) + f(1)\n"}
    )
    assert replaced("a", "f(1)", "0", root).startswith("def a():\n    return (0)\n")
    with pytest.raises(LookupError, match=r"'b' \(train/roc.py\) has 2 times 'f\(1\)', not once"):
        replaced("b", "f(1)", "0", root)


def test_a_fragment_that_is_gone_is_refused(tmp_path: Path) -> None:
    """One that is elsewhere in the file is not in the symbol."""
    root = tree(tmp_path, **{"train.roc": ROC})
    with pytest.raises(
        LookupError, match=r"'Learner' \(train/roc.py\) has 0 times 'note\(items\)', not once"
    ):
        replaced("Learner", "note(items)", "pass", root)


@pytest.mark.parametrize("fragment", ["if items:", "1.0 /", "a()\nb()", "", "if items: pass"])
def test_a_fragment_that_is_no_whole_syntax_is_refused(fragment: str, tmp_path: Path) -> None:
    root = tree(tmp_path, **{"train.roc": ROC})
    with pytest.raises(LookupError, match=r"is neither an expression nor one statement|has a block"):
        replaced("draw", fragment, "pass", root)


def test_plain_text_within_an_f_string_is_refused(tmp_path: Path) -> None:
    root = tree(tmp_path, **{"train.roc": ROC})
    assert "{(0)} of" in replaced("draw", "len(chosen)", "0", root)
    with pytest.raises(LookupError, match=r"is neither|where it cannot be replaced alone"):
        replaced("draw", "' of '", "' from '", root)


def test_what_would_be_no_python_is_refused(tmp_path: Path) -> None:
    """A pattern may hold a number, but no comparison."""
    root = tree(tmp_path, **{"train.roc": "def a(b):\n    match b:\n        case 1:\n            pass\n"})
    assert "case (2):" in replaced("a", "1", "2", root)
    with pytest.raises(SyntaxError):
        replaced("a", "1", "b > 1", root)


def test_a_test_is_found_wherever_its_file_lies(tmp_path: Path) -> None:
    text = "def test_it(): ...\n\nclass TestAll:\n    def test_one(self): ...\n"
    root = tree(tmp_path, **{"tests.train.deep.test_roc": text})
    assert find_tests("test_roc.py", root) == "tests/train/deep/test_roc.py"
    for test in ["test_it", "test_it[2-b]", "TestAll::test_one"]:
        assert find_tests(f"test_roc.py::{test}", root) == f"tests/train/deep/test_roc.py::{test}"
    with pytest.raises(LookupError, match=r"no test 'test_one' in tests/train/deep/test_roc.py"):
        find_tests("test_roc.py::test_one", root)
    with pytest.raises(LookupError, match=r"no test file 'test_other.py'"):
        find_tests("test_other.py", root)


def test_a_name_of_several_test_files_is_refused_until_a_folder_is_named(tmp_path: Path) -> None:
    root = tree(tmp_path, **{"tests.train.data.test_batch": "", "tests.sandbox.test_batch": ""})
    with pytest.raises(LookupError, match=r"2 test files .*'test_batch.py'.*tests/sandbox/test_batch.py"):
        find_tests("test_batch.py", root)
    assert find_tests("train/test_batch.py", root) == "tests/train/data/test_batch.py"
    assert find_tests("sandbox/test_batch.py", root) == "tests/sandbox/test_batch.py"


def test_a_module_has_the_name_under_which_it_is_imported(tmp_path: Path) -> None:
    assert module_name(tmp_path / "train/roc.py", tmp_path) == "rocstar.train.roc"
    assert module_name(tmp_path / "train/data/__init__.py", tmp_path) == "rocstar.train.data"

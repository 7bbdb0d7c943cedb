"""The committed results are compact, and compacting changes no value."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from compact_results import RESULTS, WIDTH, compact, main

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=200),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=60,
)


@given(VALUES)
def test_no_value_changes(value: object) -> None:
    assert json.loads(compact(value)) == value


def test_a_row_is_a_line() -> None:
    rows = [{"program": "print", "ms": 1.5, "route": "x" * 200}, {"program": "numpy", "ms": 2.5}]
    text = compact({"rows": rows, "numbers": list(range(500)), "short": [[1], {"a": 2}]})
    lines = text.splitlines()
    assert [line for line in lines if '"program"' in line] == [
        f"  {json.dumps(rows[0])},",
        f"  {json.dumps(rows[1])}",
    ]
    assert max(len(line) for line in lines if "program" not in line) <= WIDTH
    assert ' "short": [[1], {"a": 2}]' in lines


def test_a_file_that_is_not_compact_is_named_and_can_be_made_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "result.json"
    file.write_text(json.dumps({"a": [1, 2], "b": 0.1}, indent=1))
    assert main([str(file), "--check"]) == 1
    assert capsys.readouterr().out == f"{file} is not compact\n"
    assert main([str(file)]) == 0
    assert file.read_text() == '{"a": [1, 2], "b": 0.1}\n'
    assert main([str(file), "--check"]) == 0


def test_the_committed_results_are_compact() -> None:
    assert main(["--check"]) == 0, "make figures"
    assert len(list(RESULTS.glob("*.json"))) > 10

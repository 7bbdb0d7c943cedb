"""The numbers of results.json as tables, in whichever of its forms."""

import math
from pathlib import Path
from statistics import NormalDist

import msgspec
import pytest

from rocstar.train.evaluation.tables import SetNumbers, detectable, read_results, tables

from .eval_folders import MadeSet, make_folder

MEASURED = {
    "k": 4,
    "num_questions": 10,
    "failed_left_out": {
        "avg": 0.5,
        "interval": [0.3, 0.7],
        "pass_at": {"1": 0.5, "4": 0.9},
        "pass_power": {"1": 0.5, "4": 0.2},
        "maj_at": {"4": 0.6},
        "n_short": {"1": 0, "4": 2},
    },
    "failed_as_wrong": {"avg": 0.45, "interval": [0.25, 0.65], "pass_at": {"4": 0.8}},
    "failed": 3,
    "failures": {"deadline": 3},
    "overall": {"macro": 0.25},
    "measures": {"fixed": 0.75},
}


def numbers(**changes: object) -> SetNumbers:
    return msgspec.convert(MEASURED | changes, SetNumbers)


def column(one: SetNumbers, table: int, name: str) -> str:
    found = tables({"own": one})[table]
    return found.rows[0][list(found.head).index(name)]


def test_every_number_has_its_column() -> None:
    one = numbers()
    scores = ("avg@k", "failed left out", "pass@k", "maj@k", "pass^k")
    assert [column(one, 0, name) for name in scores] == [
        "0.450 [0.250, 0.650]",
        "0.500 [0.300, 0.700]",
        "0.800",
        "0.600",
        "0.200",
    ]
    assert (column(one, 1, "failed"), column(one, 1, "short")) == ("3 (3 deadline)", "2")
    assert tables({"own": one})[2].rows == [["own", "overall: macro", "0.250"], ["own", "measure: fixed", "0.750"]]


def test_the_numbers_of_a_folder_leave_no_column_empty(tmp_path: Path) -> None:
    """A number that results.json calls otherwise would be missing here without a word."""
    make_folder(tmp_path, MadeSet(name="own", num=8, k=4, failing=0.1, dirty=(1,)))
    found = read_results(tmp_path / "results.json").sets
    for table in tables(found):
        known = [name for name in table.head if name not in ("maj@k", "pass^k")]
        row = dict(zip(table.head, table.rows[0], strict=True))
        assert not [name for name in known if row[name].startswith("–")], table.title


def test_a_difference_that_is_detectable_is_found_four_times_in_five() -> None:
    error = 0.05
    quantile = NormalDist().inv_cdf(0.975)
    difference = detectable((0.5 - quantile * error, 0.5 + quantile * error))
    assert difference is not None
    power = 1 - NormalDist(difference, error * math.sqrt(2)).cdf(quantile * error * math.sqrt(2))
    assert power == pytest.approx(0.8, abs=1e-4)
    assert detectable(None) is None

"""Requests and results refuse what cannot be."""

import dataclasses
import json
from typing import Any

import pytest

from rocstar.sandbox.types import MAX_TEXT_BYTES, ExecRequest, ExecResult, Limits, Status
from tests.fakes.sandbox import error, ok, output_limit, result_from_json, timeout


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("wall_s", 0),
        ("wall_s", -1.0),
        ("wall_s", float("nan")),
        ("wall_s", float("inf")),
        ("cpu_s", 0),
        ("memory_bytes", 0),
        ("output_bytes", -1),
        ("output_bytes", 1 << 40),
        ("file_bytes", -1),
        ("files", -1),
        ("files", 1 << 20),
    ],
)
def test_a_limit_out_of_range_names_itself(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} is .*must be in"):
        Limits(**{field: value})


@pytest.mark.parametrize(("field", "value"), [("wall_s", "4"), ("cpu_s", 1.5), ("cpu_s", True), ("wall_s", None)])
def test_a_limit_of_the_wrong_type_names_itself(field: str, value: Any) -> None:
    with pytest.raises(TypeError, match=field):
        Limits(**{field: value})


def test_a_request_checks_its_seed_and_size() -> None:
    assert ExecRequest(code="", seed=0).seed == 0
    for seed in (-1, 1 << 64):
        with pytest.raises(ValueError, match="seed"):
            ExecRequest(code="", seed=seed)
    with pytest.raises(ValueError, match="stdin has"):
        ExecRequest(code="", stdin="x" * (MAX_TEXT_BYTES + 1))


def test_a_result_ends_in_exactly_one_way() -> None:
    for exit_code, signal in ((None, None), (1, 9)):
        with pytest.raises(ValueError, match="exactly one"):
            dataclasses.replace(error(), exit_code=exit_code, signal=signal)


def test_ok_means_exit_code_zero() -> None:
    with pytest.raises(ValueError, match="contradicts"):
        dataclasses.replace(error(), exit_code=0)
    with pytest.raises(ValueError, match="contradicts"):
        dataclasses.replace(ok(), exit_code=1)
    # A flood is a flood even when the program got to its end before the kill, and late is late.
    dataclasses.replace(output_limit(), exit_code=0, signal=None)
    dataclasses.replace(timeout(), exit_code=0, signal=None)


@pytest.mark.parametrize("result", [ok("a", value="1"), error("b"), timeout()])
def test_a_result_survives_json(result: ExecResult) -> None:
    assert result_from_json(json.loads(json.dumps(result.to_json()))) == result


def test_statuses_are_those_of_the_contract() -> None:
    assert [*Status] == ["ok", "error", "signaled", "timeout", "memory_limit", "output_limit", "denied"]

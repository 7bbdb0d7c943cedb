"""What a learner made of tokens comes back as exactly as it promises, from whichever rank learned it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.record.json_record import RecordError
from rocstar.engine.record.learned import MAX_ENTROPY, LearnedStep, LearnedTokens, learned_path, write_learned

FRAMES = "step_000003.columns"
numbers = st.floats(-60, 60, width=32)


def tokens(gaps: Any, entropies: Any = None, ratios: Any = None, codes: Any = None) -> LearnedTokens:
    number = len(gaps)
    return LearnedTokens(
        gaps=np.array(gaps, np.float32),
        entropies=np.array([1.0] * number if entropies is None else entropies, np.float32),
        log_ratios=np.array([0.0] * number if ratios is None else ratios, np.float32),
        codes=np.array([0] * number if codes is None else codes, np.uint8),
    )


@given(
    rows=st.lists(st.tuples(numbers, st.none() | st.floats(0, 16, width=32), numbers, st.integers(0, 2)), max_size=40)
)
def test_what_was_written_comes_back_as_exactly_as_it_promises(
    rows: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("learned")
    gaps, entropies, ratios, codes = zip(*rows, strict=True) if rows else ((), (), (), ())
    known = [np.nan if e is None else e for e in entropies]
    write_learned(folder, {"s3/t/0": tokens(gaps, known, ratios, codes)}, step=3, rank=0, ranks=1)
    found = LearnedStep(folder / FRAMES).find("s3/t/0")
    assert found is not None and len(found) == len(rows)
    for told, given_ in ((found.gaps, gaps), (found.log_ratios, ratios)):
        np.testing.assert_allclose(told, np.array(given_, np.float32), rtol=0.005, atol=3e-7)
    level = np.sqrt(np.array(known) / MAX_ENTROPY)
    steps = np.abs(np.sqrt(found.entropies / MAX_ENTROPY) - level)
    assert np.array_equal(np.isnan(found.entropies), np.isnan(known)) and not (steps > 0.51 / 254).any()
    assert found.codes.tolist() == list(codes)


def test_a_large_number_stays_one_and_a_sign_stays(tmp_path: Path) -> None:
    write_learned(tmp_path, {"a": tokens([1e9, -1e9, -0.25, 65519.0])}, step=3, rank=0, ranks=1)
    found = LearnedStep(tmp_path / FRAMES).find("a")
    assert found is not None and found.gaps.tolist() == [65280.0, -65280.0, -0.25, 65280.0]


def test_each_rank_has_its_own_and_those_of_a_former_world_are_not_looked_at(tmp_path: Path) -> None:
    for rank in range(4):
        learned = {f"of {rank}": tokens([rank / 4.0]), f"former {rank}": tokens([9.0])}
        write_learned(tmp_path, learned, step=3, rank=rank, ranks=4)
    step = LearnedStep(tmp_path / FRAMES)
    assert [step.find(f"of {rank}").gaps.tolist() for rank in range(4)] == [[0.0], [0.25], [0.5], [0.75]]  # type: ignore[union-attr]
    assert step.find("of 4") is None and LearnedStep(tmp_path / "step_000004.columns").find("of 1") is None
    write_learned(tmp_path, {"of 0": tokens([1.0])}, step=3, rank=0, ranks=2)
    step = LearnedStep(tmp_path / FRAMES)
    assert step.find("of 0") is not None and step.find("former 1") is None, "rank 1 has not written yet"
    write_learned(tmp_path, {"of 1": tokens([1.0])}, step=3, rank=1, ranks=2)
    step = LearnedStep(tmp_path / FRAMES)
    assert step.find("of 1") is not None and step.find("former 2") is None and step.find("former 0") is None


def test_a_first_update_costs_no_ratios(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    gaps = rng.normal(0, 0.01, 4000)
    entropies = rng.gamma(0.5, 1, 4000)
    ratios = rng.normal(0, 0.01, 4000)
    sizes = [
        write_learned(tmp_path, {"a": one}, step=3, rank=0, ranks=1).stat().st_size / 4000
        for one in (tokens(gaps, entropies), tokens(gaps, entropies, ratios))
    ]
    assert sizes[0] < 2.5 and sizes[1] < 4.2, "bytes a token"


def test_what_is_damaged_says_so(tmp_path: Path) -> None:
    path = write_learned(tmp_path, {"a": tokens([0.5] * 9)}, step=3, rank=0, ranks=1)
    whole = path.read_bytes()
    path.write_bytes(whole[:-3] + b"abc")
    with pytest.raises(RecordError, match="damaged"):
        LearnedStep(tmp_path / FRAMES).find("a")
    for torn, told in ((b"", "token stat"), (b"x" * 40, "token stat"), (whole[:20], "torn")):
        path.write_bytes(torn)
        with pytest.raises(RecordError, match=told):
            LearnedStep(tmp_path / FRAMES)
    assert path == learned_path(tmp_path, 3, 0) and [p.name for p in tmp_path.iterdir()] == [path.name]

"""What the learner made of each token stands beside the records as it was at the token's update."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rocstar.engine.record.learned import LearnedStep, LearnedTokens, learned_path
from rocstar.train.algorithm.loss import logprobs_and_entropy, stopped
from rocstar.train.algorithm.off_policy import Gate
from rocstar.train.learner.batch import MicroBatch, pack
from rocstar.train.learner.learner import Learner
from rocstar.train.learner.token_stats_writer import TokenStatsBuffer, TokenStatsPath, TokenStatsWriter

from ...fakes.tiny import CLIP, policy_tokens
from .test_learner import MASKS, SETTINGS, examples, learner, settings

FRAMES = "step_000007.columns"


def marked(made: Learner, updates: list[list[MicroBatch]], given: object = SETTINGS) -> dict[str, LearnedTokens]:
    made.token_stats = token_stats = TokenStatsBuffer()
    made.policy_step(updates, given)  # type: ignore[arg-type]
    return token_stats.by_name


def by_name(micros: list[MicroBatch], columns: list[torch.Tensor]) -> dict[str, list[float]]:
    """A column of each microbatch as one of each trajectory."""
    told: dict[str, list[float]] = {}
    for micro, column_T in zip(micros, columns, strict=True):
        for name, part in zip(micro.names_S, column_T.split(micro.targets_S), strict=True):
            told[name] = part.tolist()
    return told


@pytest.mark.parametrize("budget", [11, 1000])
def test_a_token_has_what_the_learner_thought_of_it_at_its_update(budget: int) -> None:
    """Two updates, against the definition: the first is the batch start, the second comes behind a step."""
    made = learner()
    first, second = (pack(part, tokens_per_microbatch=budget) for part in (examples()[:2], examples()[2:]))
    starts = by_name([*first, *second], made.logprobs([*first, *second], SETTINGS.temperature))
    found = marked(made, [first, second])
    assert sorted(found) == [str(k) for k in range(5)]
    for name, tokens in found.items():
        assert len(tokens) == sum(MASKS[int(name)])
        np.testing.assert_allclose(tokens.gaps, np.array(starts[name]) + 1.0, atol=1e-5)
        assert (tokens.entropies > 0).all() and (tokens.entropies < np.log(40)).all()
    for name in ("0", "1"):
        assert not found[name].log_ratios.any() and not found[name].codes.any()
    again = learner()
    again.policy_step([first], SETTINGS)
    current = again.logprobs(second, SETTINGS.temperature)
    olds = learner().logprobs(second, SETTINGS.temperature)
    codes = [
        stopped(CLIP, policy_tokens(now_T, old_logprobs_T=old_T, advantages_T=micro.advantages_T))
        for micro, now_T, old_T in zip(second, current, olds, strict=True)
    ]
    now, clipped = by_name(second, current), by_name(second, codes)
    assert any(any(column) for column in clipped.values()), "the clip acts"
    for name in ("2", "3", "4"):
        ratios = np.array(now[name]) - np.array(starts[name])
        np.testing.assert_allclose(found[name].log_ratios, ratios, atol=1e-5)
        assert found[name].codes.tolist() == clipped[name]


def test_entropies_are_those_of_the_definition() -> None:
    made = learner()
    (micro,) = pack(examples()[:1], tokens_per_microbatch=100)
    with torch.no_grad():
        rows = made.policy(micro, lambda hidden_TD, weight_VD: hidden_TD @ weight_VD.T)
    expected = logprobs_and_entropy(rows, micro.targets_T, SETTINGS.temperature)[1]
    (tokens,) = marked(made, [[micro]]).values()
    np.testing.assert_allclose(tokens.entropies, expected.numpy(), atol=1e-5)


def test_a_batch_that_the_gate_stopped_is_marked_as_measured() -> None:
    gated = settings("none", gate=Gate(kl=0.0, ratio_p99=1.0, steps=1))
    parts = [pack(part, tokens_per_microbatch=16) for part in (examples()[:2], examples()[2:])]
    found = marked(learner(), parts, gated)
    assert sorted(found) == [str(k) for k in range(5)]
    assert [bool(np.isnan(found[str(k)].entropies).all()) for k in range(5)] == [False] * 2 + [True] * 3
    assert all(tokens.gaps.any() and not tokens.log_ratios.any() for tokens in found.values())


def test_marks_are_written_beside_the_work_and_settled_before_the_next(tmp_path: Path) -> None:
    place, writer = TokenStatsPath(folder=tmp_path / "trajectories", step=7), TokenStatsWriter(1, 2)
    made = learner()
    expected = marked(made, [pack(examples(), tokens_per_microbatch=16)])["2"]
    assert not writer.settle()
    writer.begin(place, made.token_stats)
    assert not writer.settle() and learned_path(place.folder, 7, 1).is_file()
    writer.close()
    other = TokenStatsWriter(0, 2)
    other.begin(place, TokenStatsBuffer())
    other.close()
    found = LearnedStep(place.folder / FRAMES).find("2")
    assert found is not None
    np.testing.assert_allclose(found.gaps, expected.gaps, rtol=0.005)


def test_what_a_disk_does_not_take_is_told_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "trajectories").touch()
    writer = TokenStatsWriter(0, 1)
    writer.begin(TokenStatsPath(folder=tmp_path / "trajectories", step=7), TokenStatsBuffer())
    assert "step 7 could not be written to" in writer.settle() and not writer.settle()
    writer.close()

"""Entropies of stored trajectories are those of the learner, whatever shares a microbatch with them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from rocstar.engine.types import Trajectory
from rocstar.train.algorithm.off_policy import Correction
from rocstar.train.learner.batch import MicroBatch, last_token, pack, policy_examples
from rocstar.train.learner.learner import Learner, LossSettings
from rocstar.train.learner.policy_model import PolicyModel
from rocstar.train.learner.scratch import build_model
from rocstar.train.learner.token_scores import token_scores

from ...fakes.tiny import CLIP, SCRATCH, scale_matrices
from ...fakes.trajectories import TASK, FakeTurn, branched_trajectory, make_trajectory

VOCAB, TEMPERATURE = 50, 0.7


def learner() -> Learner:
    model = build_model(SCRATCH, VOCAB, seed=1)
    scale_matrices(model)
    return Learner(model)


def plain_copy(made: Learner) -> Any:
    """Another model with the same weights, which runs as transformers has it."""
    plain = build_model(SCRATCH, VOCAB, seed=1)
    plain.load_state_dict(made.model.state_dict())
    return plain


def trajectory(number: int) -> Trajectory:
    """Of a prompt that three siblings share, two turns and tool output between them."""
    rng = np.random.default_rng(number)
    prompt = np.random.default_rng(number // 3).integers(0, VOCAB, 9)
    first, tool, second = (rng.integers(0, VOCAB, num).tolist() for num in rng.integers(1, 12, 3))
    return make_trajectory(
        FakeTurn(ids=first, answer=tool),
        FakeTurn(ids=second),
        prompt=prompt.tolist(),
        task=dataclasses.replace(TASK, id=str(number // 3)),
        sibling=number % 3,
    )


TRAJECTORIES = [trajectory(number) for number in (4, 0, 2, 5, 1, 3)]
EXAMPLES = policy_examples(TRAJECTORIES, [0.5] * len(TRAJECTORIES))
SETTINGS = LossSettings(temperature=TEMPERATURE, loss=CLIP, correction=Correction.none)


@pytest.mark.parametrize("room", [16, 10_000])
def test_each_token_has_the_entropy_of_its_own_logits(room: int) -> None:
    """To 1e-5 of log_softmax(logits / T) over all logits in float64, in the order that was asked."""
    made = learner()
    scores = token_scores(made.policy, TRAJECTORIES, temperature=TEMPERATURE, tokens_per_microbatch=room)
    plain = plain_copy(made)
    for one, found in zip(TRAJECTORIES, scores, strict=True):
        with torch.no_grad():
            logits = plain(torch.from_numpy(one.ids.astype(np.int64))[None]).logits[0].double()
        logprobs = torch.log_softmax(logits / TEMPERATURE, -1)
        places = np.flatnonzero(one.loss_mask())
        entropy = -(logprobs.exp() * logprobs).sum(-1).numpy()[places - 1]
        chosen = logprobs.numpy()[places - 1, one.ids[places]]
        np.testing.assert_allclose(found.entropy_N, entropy, atol=1e-5)
        np.testing.assert_allclose(found.logprob_N, chosen, atol=1e-5)


def test_a_sequence_of_a_trajectory_is_scored_without_the_one_before() -> None:
    first = make_trajectory(FakeTurn(ids=(2, 3), answer=(4,)), FakeTurn(ids=(7,)))
    second = make_trajectory(FakeTurn(ids=(5, 6)), prompt=(1, 2, 3))
    made = [branched_trajectory(), first, second]
    both, *parts = token_scores(learner().policy, made, temperature=TEMPERATURE, tokens_per_microbatch=10_000)
    np.testing.assert_allclose(both.entropy_N, np.concatenate([one.entropy_N for one in parts]), atol=1e-6)
    np.testing.assert_allclose(both.logprob_N, np.concatenate([one.logprob_N for one in parts]), atol=1e-6)


def test_their_sum_is_what_the_learner_counts_when_it_learns() -> None:
    made = learner()
    scores = token_scores(made.policy, TRAJECTORIES, temperature=TEMPERATURE, tokens_per_microbatch=10_000)
    entropy = tokens = 0.0
    for micro in pack(EXAMPLES, tokens_per_microbatch=40):
        stats, _ = made.policy_backward(micro, SETTINGS)
        entropy, tokens = entropy + stats.entropy, tokens + stats.tokens
    assert tokens == sum(len(one.entropy_N) for one in scores)
    assert sum(one.entropy_N.sum() for one in scores) / tokens == pytest.approx(entropy / tokens, abs=1e-5)


@pytest.mark.parametrize("head_dtype", [torch.float32, None])
def test_all_log_probs_are_of_logits_of_the_type_of_the_head(head_dtype: torch.dtype | None) -> None:
    """Of a bfloat16 model: those of float64 logits of the same hidden states to 1e-5, or not nearly so."""
    made, ids = Learner(learner().model.bfloat16(), head_dtype=head_dtype), TRAJECTORIES[0].ids[:5].tolist()
    sequence = dataclasses.replace(SETTINGS, correction=Correction.sequence)
    (micro,) = pack(EXAMPLES, tokens_per_microbatch=10_000)

    def exact(of: MicroBatch, temperature: float) -> torch.Tensor:
        with torch.no_grad():
            hidden_TD, weight_VD = made.policy(of, lambda hidden, weight: (hidden, weight))
            return torch.log_softmax(hidden_TD.double() @ weight_VD.double().T / temperature, -1)

    def error(found_T: torch.Tensor, temperature: float) -> float:
        exact_T = exact(micro, temperature).gather(-1, micro.targets_T[:, None])[:, 0]
        return float((found_T.sort().values - exact_T.sort().values).abs().max())

    scores = token_scores(made.policy, TRAJECTORIES, temperature=TEMPERATURE, tokens_per_microbatch=10_000)
    scored_T = torch.from_numpy(np.concatenate([one.logprob_N for one in scores]))
    (greedy,) = made.greedy(ids, 1)[1]
    errors = [
        error(scored_T, TEMPERATURE),
        error(made.logprobs([micro], TEMPERATURE)[0], TEMPERATURE),
        error(made.policy_backward(micro, sequence)[1], TEMPERATURE),
        error(made.imitation_backward(micro)[1], 1.0),
        abs(greedy - float(exact(last_token(ids), 1.0).max())),
    ]
    assert max(errors) < 1e-5 if head_dtype else min(errors) > 1e-4, errors


def test_an_id_that_the_model_does_not_have_is_refused() -> None:
    small = PolicyModel(build_model(SCRATCH, 20, seed=1))
    with pytest.raises(ValueError, match="outside the vocabulary of 20"):
        token_scores(small, TRAJECTORIES, temperature=1.0, tokens_per_microbatch=100)


def test_greedy_is_the_models() -> None:
    made, ids = learner(), [5, 9, 31, 7]
    plain, logprobs = plain_copy(made), []
    found, found_logprobs = made.greedy(ids, 3)
    with torch.no_grad():
        for _ in range(3):
            logits_V = plain(torch.tensor([ids])).logits[0, -1].float()
            best = torch.log_softmax(logits_V, -1).max(-1)
            ids = [*ids, int(best.indices)]
            logprobs.append(float(best.values))
    assert found == ids[4:] and found_logprobs == pytest.approx(logprobs, abs=1e-5)

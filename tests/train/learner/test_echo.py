"""`rl.echo`: imitation of tool results beside the policy loss, on packed and split rows, against float64."""

from __future__ import annotations

import itertools
import math
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rocstar.engine.types import Origin, Trajectory
from rocstar.train.algorithm.off_policy import Correction
from rocstar.train.groups.packing import pack_updates
from rocstar.train.groups.selection import Selection
from rocstar.train.learner.batch import MicroBatch, pack, policy_examples
from rocstar.train.learner.learner import Learner, LossSettings
from rocstar.train.learner.loss_stats import LossStats, update_metrics
from rocstar.train.learner.scratch import build_model
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.rl_config import RlConfig
from tests.fakes.trajectories import FakeTurn, make_trajectory

from ...fakes.tiny import ADAMW, CLIP, SCRATCH, scale_matrices

VOCAB, ECHO, T = 40, 0.3, 0.7
SETTINGS = LossSettings(temperature=T, loss=CLIP, correction=Correction.none)
ADVANTAGES = [1.2, -0.7, 0.4, -1.5]


def bodies(ids: list[int]) -> list[bool]:
    """The scaffold is 30 and above."""
    return [token < 30 for token in ids]


def trajectories() -> list[Trajectory]:
    """Siblings with one prompt and results of several lengths; one without a tool, one that ends with a result."""
    rng, turns = np.random.default_rng(1), [[3, 2], [5, 1, 4], [6], [2, 2]]
    made = []
    for k, lengths in enumerate(turns):
        answers = [[30, *rng.integers(3, 29, n).tolist(), 31, 32] for n in (1, 6, 3)[: len(lengths) - 1]]
        if k == 3:
            answers.append([30, 9, 9, 31])
        parts = itertools.zip_longest((rng.integers(3, 29, n).tolist() for n in lengths), answers, fillvalue=())
        made.append(make_trajectory(*(FakeTurn(ids=i, answer=a) for i, a in parts), prompt=(1, 33, 2), sibling=k))
    return made


def a_model() -> Any:
    made = build_model(SCRATCH, VOCAB, seed=0)
    scale_matrices(made)
    return made


def learner() -> Learner:
    made = Learner(a_model())
    made.use(replace(ADAMW, weight_decay=0.0, grad_clip=math.inf))
    return made


def micros_of(echo: float, budget: int = 1000, ranks: int = 1) -> list[MicroBatch]:
    examples = policy_examples(trajectories(), ADVANTAGES, echo=echo, bodies=bodies)
    return pack(examples, tokens_per_microbatch=budget, ranks=ranks)


def gradient(made: Learner, micros: list[MicroBatch]) -> tuple[dict[str, Tensor], LossStats]:
    made.optimizers.zero_grad()
    total = LossStats()
    for micro in micros:
        total.add(made.policy_backward(micro, SETTINGS)[0])
    return {n: p.grad.clone() for n, p in made.model.named_parameters() if p.grad is not None}, total


def oracle(echo: float) -> tuple[dict[str, Tensor], float]:
    """The gradient of both losses with all logits of each row alone, in float64; and the mean cross-entropy."""
    model = a_model().double()
    model.set_attn_implementation("eager")
    policy, crosses, num_policy = torch.zeros((), dtype=torch.float64), [], 0
    for trajectory, advantage in zip(trajectories(), ADVANTAGES, strict=True):
        ids = torch.tensor(trajectory.ids.astype(np.int64))
        logits = model(input_ids=ids[None], use_cache=False).logits[0]
        last = max(s.end for s in trajectory.segments if s.origin is Origin.policy)
        for segment in trajectory.segments:
            for place in range(segment.start, segment.end):
                if segment.origin is Origin.policy:
                    logprob = torch.log_softmax(logits[place - 1] / T, -1)[ids[place]]
                    policy, num_policy = policy - advantage * (logprob - logprob.detach()).exp(), num_policy + 1
                elif segment.origin is Origin.tool and place < last and ids[place] < 30:
                    crosses.append(-torch.log_softmax(logits[place - 1], -1)[ids[place]])
    mean = torch.stack(crosses).mean()
    torch.autograd.backward(policy / num_policy + echo * mean)
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}, float(mean.detach())


@pytest.mark.parametrize(("budget", "ranks"), [(1000, 1), (20, 1), (16, 2)])
def test_gradient_and_value_are_those_of_the_definition(budget: int, ranks: int) -> None:
    expected, mean = oracle(ECHO)
    micros = micros_of(ECHO, budget, ranks)
    assert (len(micros) > 1) == (budget < 1000)
    found, stats = gradient(learner(), [pickle.loads(pickle.dumps(micro)) for micro in micros])
    assert found.keys() == expected.keys() and max(float(g.abs().max()) for g in expected.values()) > 1e-3
    for name, grad in found.items():
        torch.testing.assert_close(grad.double(), expected[name], rtol=1e-5, atol=1e-6, msg=name)
    assert stats.echo_tokens == 1 + 1 + 6 + 1
    stats.grad_norms.append(1.0)
    assert update_metrics(stats)["loss/echo"] == pytest.approx(mean, rel=1e-5)


def test_the_policy_loss_and_its_statistics_do_not_change() -> None:
    before, after = (gradient(learner(), micros_of(echo))[1] for echo in (0.0, ECHO))
    for name in (name for name in LossStats.SUMS if not name.startswith("echo")):
        assert getattr(after, name) == pytest.approx(getattr(before, name), rel=1e-6), name
    assert (before.echo, before.echo_tokens) == (0.0, 0.0) and "loss/echo" not in update_metrics(before)


def test_without_the_field_a_microbatch_has_the_bits_of_before() -> None:
    (plain,), (made,) = pack(policy_examples(trajectories(), ADVANTAGES), tokens_per_microbatch=1000), micros_of(0.0)
    assert made.echo_targets_E is None and made.with_echo() is made
    for one, other in zip(pickle.loads(pickle.dumps(plain)).__reduce__()[1], made.__reduce__()[1], strict=True):
        assert np.array_equal(one, other)


def test_long_outputs_do_not_thin_the_policys_loss() -> None:
    (micro,) = micros_of(ECHO)
    assert float(micro.weights_T.sum()) == pytest.approx(1.0)
    assert micro.echo_weights_E is not None and float(micro.echo_weights_E.sum()) == pytest.approx(ECHO)


def test_a_step_with_echo_learns_the_results() -> None:
    made, micros = learner(), micros_of(1.0)
    found = [made.policy_step([micros, micros], SETTINGS).echo for _ in range(6)]
    assert found[-1] < 0.7 * found[0]


def test_a_recipe_with_echo_needs_the_places_of_results() -> None:
    recipe, kept = Recipe(rl=RlConfig(echo=ECHO)), trajectories()
    chosen = Selection(kept=kept, advantages=ADVANTAGES, verdicts=[], groups_used=1, groups_no_signal=0)
    ((micro,),) = pack_updates(chosen, recipe, step=1, bodies=bodies)
    assert micro.echo_targets_E is not None and len(micro.echo_targets_E) == 9
    with pytest.raises(ValueError, match=r"rl.echo = 0.3 needs .* bodies=run.bodies"):
        pack_updates(chosen, recipe, step=1)

"""A GPU computes what the CPU computes, in another order: the loss, an update, decoding, copies.

`python -m pytest -m gpu` on a machine with a GPU; every other selection sees none. The last run was on
one H100.
"""

import asyncio
import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from rocstar.engine.inference.base import Generation, Sampling
from rocstar.engine.inference.embedded.embedded import EmbeddedEngine
from rocstar.kernels.linear_loss import linear_loss
from rocstar.train.learner import host_memory
from rocstar.train.learner.batch import MicroBatch, pack
from rocstar.train.learner.example import Example
from rocstar.train.learner.learner import Learner
from rocstar.train.learner.optim import OptimSpec
from rocstar.train.learner.policy_model import checkpoint_activations
from rocstar.train.learner.scratch import build_model
from rocstar.train.recipe.model_config import ScratchConfig

pytestmark = pytest.mark.gpu

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
VOCAB = 300
HALF, SINGLE = torch.bfloat16, torch.float32


def relative(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize(("dtype", "bound"), [(SINGLE, 1e-4), (HALF, 2e-2)])
def test_the_loss_is_that_of_the_cpu_in_float64(dtype: torch.dtype, bound: float) -> None:
    """Its log-probs, and the gradients of both inputs. 700 rows are more than a block of a kernel."""
    generator = torch.Generator().manual_seed(1)
    hidden_ND = torch.randn(700, 64, generator=generator).to(dtype)
    weight_VD = (0.3 * torch.randn(1111, 64, generator=generator)).to(dtype)
    ids_N = torch.randint(0, 1111, (700,), generator=generator)
    inputs = [x.to(GPU).requires_grad_() for x in (hidden_ND, weight_VD)]
    loss, rows = linear_loss(*inputs, ids_N.to(GPU), lambda logprobs_N, _: -logprobs_N / 700)
    wide = [x.double().requires_grad_() for x in (hidden_ND, weight_VD)]
    logprobs_N = torch.log_softmax(wide[0] @ wide[1].T, -1).gather(1, ids_N[:, None])[:, 0]
    assert relative(rows.logprobs_N, logprobs_N) < bound
    found = torch.autograd.grad(loss, inputs)
    for one, expected in zip(found, torch.autograd.grad(-logprobs_N.mean(), wide), strict=True):
        assert relative(one, expected) < bound


def microbatch() -> MicroBatch:
    """Two siblings that share a prompt, and a longer row."""
    generator = torch.Generator().manual_seed(2)
    prompt = torch.randint(20, VOCAB, (40,), generator=generator).tolist()
    examples = []
    for start, length in ((prompt, 30), (prompt, 50), ([], 120)):
        ids = [*start, *torch.randint(20, VOCAB, (length,), generator=generator).tolist()]
        mask = [0] * 10 + [1] * (len(ids) - 10)
        weights = [flag / 200 for flag in mask]
        row = Example(ids=ids, mask=mask, weights=weights, rollout_logprobs=[None] * len(ids), advantage=1.0)
        examples.append(row)
    (micro,) = pack(examples, tokens_per_microbatch=4096)
    return micro


def test_an_update_is_that_of_the_cpu() -> None:
    """Loss, norm and gradients, with layers that run again in backward; then moments go and come back."""
    model = build_model(ScratchConfig(), VOCAB, seed=3)
    learners = []
    for device in (CPU, GPU):
        any_model: Any = copy.deepcopy(model)
        checkpoint_activations(any_model)
        learner = Learner(any_model.to(device))
        learner.use(OptimSpec(kind="adamw", lr=1e-3, weight_decay=0.0, grad_clip=1.0, warmup_steps=0))
        learner.offloads_moments = True
        learners.append(learner)
    micro = microbatch()
    found = [learner.imitation_backward(micro)[0].loss for learner in learners]
    assert found[1] == pytest.approx(found[0], rel=1e-4)
    for one, other in zip(*(learner.model.parameters() for learner in learners), strict=True):
        assert one.grad is not None and other.grad is not None and other.is_cuda
        assert relative(other.grad, one.grad) < 1e-3
    for _ in range(3):
        norms = [learner.imitation_step([micro]).grad_norms for learner in learners]
        assert norms[1] == pytest.approx(norms[0], rel=1e-2)
        freed = [learner.release_memory() for learner in learners]
        assert freed[1].moments == 8 * sum(p.numel() for p in model.parameters())


async def generated(model: Any, prompts: list[list[int]]) -> list[Generation]:
    """12 tokens for each prompt, greedy and sampled in turns, in slots that each serve several."""
    with ThreadPoolExecutor(1) as thread:
        async with EmbeddedEngine(model, max_running=4, thread=thread) as engine:

            async def one(number: int, ids: list[int]) -> Generation:
                name = f"s0/t{number}/0"
                got = await engine.generate(
                    ids,
                    max_new_tokens=12,
                    stop_ids=frozenset(),
                    sampling=Sampling(temperature=float(number % 2)),
                    seed=number,
                    request_id=name,
                    deadline=asyncio.get_running_loop().time() + 120,
                )
                engine.release(name)
                return got

            return list(await asyncio.gather(*(one(k, ids) for k, ids in enumerate(prompts))))


@pytest.mark.parametrize(("dtype", "bound"), [(SINGLE, 1e-3), (HALF, 0.15)])
async def test_decoded_tokens_have_the_log_probs_of_the_cpu(dtype: torch.dtype, bound: float) -> None:
    """Of a plain forward in float64 with the weights that were served."""
    model: Any = build_model(ScratchConfig(), VOCAB, seed=3).to(dtype)
    generator = torch.Generator().manual_seed(4)
    lengths = [1, 5, 5, 17, 40, 40, 70, 130]
    prompts = [torch.randint(20, VOCAB, (n,), generator=generator).tolist() for n in lengths]
    plain = copy.deepcopy(model).double()
    found = await generated(model.to(GPU), prompts)
    for number, (ids, got) in enumerate(zip(prompts, found, strict=True)):
        with torch.no_grad():
            logits_TV = plain(input_ids=torch.tensor([[*ids, *got.ids]]), use_cache=False).logits[0]
        expected_T = torch.log_softmax(logits_TV, -1)[len(ids) - 1 : -1]
        chosen_T = expected_T.gather(1, torch.tensor(got.ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(got.logprobs).double(), chosen_T, atol=bound, rtol=0)
        if number % 2 == 0:
            assert bool((expected_T.max(-1).values - chosen_T <= bound).all()), "greedy"


def test_what_is_sent_to_the_host_and_back_is_unchanged() -> None:
    """Where memory can be pinned the host's copies are."""
    tensors = [
        torch.randn(size, device=GPU, generator=torch.Generator(GPU).manual_seed(size)) for size in (7, 1 << 20)
    ]
    away = host_memory.sent(tensors, CPU)
    assert all(tensor.is_pinned() for tensor in away)
    back = host_memory.sent(away, GPU)
    assert all(torch.equal(one, two) for one, two in zip(back, tensors, strict=True))

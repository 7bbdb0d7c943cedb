"""Learns the same two batches on 1, 2 and 4 gloo ranks; run by test_ranks.py in a process of its own.

import once -> for each number of ranks: fork them -> each case: LearnerTeam, steps -> rank 0 saves
CASES: models, with all that is done with the weights. TERMS: losses, whose steps alone are taken, on 1 and 2 ranks.
"""

import asyncio
import dataclasses
import itertools
import math
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

from rocstar.engine.inference.weight_stream import WeightStream
from rocstar.engine.inference.weights import DiskWeights
from rocstar.train.algorithm.advantages import ESTIMATORS, Sample
from rocstar.train.algorithm.loss import PolicyTokens
from rocstar.train.algorithm.losses import LOSSES
from rocstar.train.algorithm.losses.clip import Clip
from rocstar.train.algorithm.off_policy import Correction, Gate
from rocstar.train.algorithm.penalties import Penalties, not_below_zero
from rocstar.train.learner import gather
from rocstar.train.learner.batch import MicroBatch, pack
from rocstar.train.learner.checkpoint_writer import Order
from rocstar.train.learner.commands import LoadStart, ReleaseMemory
from rocstar.train.learner.example import Example
from rocstar.train.learner.learner import LossSettings, NonFiniteGradientError
from rocstar.train.learner.loss_stats import LossStats
from rocstar.train.learner.optim import OptimSpec, bytes_here
from rocstar.train.learner.own_loss import OwnLoss
from rocstar.train.learner.sharding import shard
from rocstar.train.learner.team import LearnerTeam
from rocstar.train.learner.token_stats_writer import TokenStatsPath
from rocstar.train.learner.world import World
from rocstar.train.publish.rank_commands import FullWeights, SendWeights, WriteWeights, weight_shapes
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.model_config import ModelConfig

sys.path.insert(0, str(Path(__file__).parents[1] / "algorithm"))

from loss_oracle import CAP, FLOOR, made

SIZES = (1, 2, 4)
VOCAB = 40
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "pad_token_id": None,
}
FAMILIES = {"qwen3": Qwen3Config, "llama": LlamaConfig}
SPEC = OptimSpec(kind="adamw", lr=1e-3, weight_decay=0.1, grad_clip=1.0, warmup_steps=2)
SETTINGS = LossSettings(
    temperature=0.7,
    loss=Clip(clip_low=0.2, clip_high=0.28),
    correction=Correction.token,
    gate=Gate(kl=50.0, ratio_p99=1e9, steps=3),
)


def corrected(mode: Correction) -> LossSettings:
    return dataclasses.replace(SETTINGS, correction=mode)


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and how it is run."""

    family: str
    tied: bool
    config: ModelConfig = ModelConfig()  # noqa: RUF009
    settings: LossSettings = SETTINGS
    sizes: tuple[int, ...] = SIZES
    nodes: int = 1
    by_hand: bool = False
    """Learned update by update, by the parts of a custom loop."""
    echo: float = 0.0
    penalties: Penalties | None = None


def term(echo: float = 0.0, penalties: Penalties | None = None, **changes: Any) -> Case:
    """The clipped loss with these changes, or other advantages or tokens."""
    settings = dataclasses.replace(SETTINGS, correction=Correction.none, cap=CAP, floor=FLOOR)
    return Case(
        "qwen3",
        tied=True,
        settings=dataclasses.replace(settings, **changes),
        sizes=(1, 2),
        echo=echo,
        penalties=penalties,
    )


TERMS = {name: term(loss=made(name)) for name in LOSSES} | {
    "sequence_mask": term(correction=Correction.sequence_mask),
    "negative_mask": term(correction=Correction.negative_mask),
    "echo": term(echo=0.5),
    "penalties": term(penalties=Penalties(length=0.25, turns=0.1, buffer=6, limit=16)),
    "entropy": term(entropy_alpha=0.5),
}
CASES = {
    "qwen3 tied": Case("qwen3", tied=True),
    "llama": Case("llama", tied=False, settings=corrected(Correction.icepop), sizes=(1, 2)),
    "llama tied": Case("llama", tied=True, settings=corrected(Correction.sequence), sizes=(1, 2)),
    "checkpointing": Case("qwen3", tied=True, config=ModelConfig(activation_checkpointing="on"), sizes=(2,)),
    "over nodes": Case("qwen3", tied=True, config=ModelConfig(sharding="node"), sizes=(4,), nodes=2),
    "by hand": Case("qwen3", tied=True, sizes=(1, 2), by_hand=True),
    "bfloat16": Case("qwen3", tied=True, config=ModelConfig(dtype="bfloat16"), sizes=(1, 2)),
}


def build(case: Case) -> PreTrainedModel:
    config = FAMILIES[case.family](**SMALL, tie_word_embeddings=case.tied)
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model


def examples(batch: int) -> list[Example]:
    """Twelve trajectories of two turns with tool output in between."""
    generator = torch.Generator().manual_seed(batch)
    made = []
    for k in range(12):
        prompt, first, tool, second = (int(n) for n in torch.randint(1, 7, (4,), generator=generator))
        mask = [0] * prompt + [1] * first + [0] * tool + [1] * second
        ids = torch.randint(VOCAB, (len(mask),), generator=generator).tolist()
        logprobs = (0.5 * torch.randn(len(mask), generator=generator) - 3.7).tolist()
        advantage = float(torch.randn((), generator=generator))
        weights = [m / 60 for m in mask]
        made.append(
            Example(
                ids=ids,
                mask=mask,
                weights=weights,
                rollout_logprobs=[p if m else None for p, m in zip(logprobs, mask, strict=True)],
                advantage=advantage,
                name=f"{batch}/{k}",
            )
        )
    return made


def penalized(rows: list[Example], penalties: Penalties) -> list[Example]:
    """The rows as one group, every other one right, with the advantages of their penalized rewards."""
    samples = []
    for k, row in enumerate(rows):
        turns = tuple(len(list(run)) for has_loss, run in itertools.groupby(row.mask) if has_loss)
        others = len(row.mask) - row.num_targets
        samples.append(
            Sample(reward=k % 2, is_correct=k % 2 == 1, tokens_U=turns, errors_U=(0,) * len(turns), tool_tokens=others)
        )
    plain, given = ESTIMATORS["grpo"]([samples, penalties.applied(samples)])
    advantages = not_below_zero(samples, plain, given)
    return [dataclasses.replace(row, advantage=a) for row, a in zip(rows, advantages, strict=True)]


def updates(batch: int, case: Case | None = None) -> list[list[MicroBatch]]:
    rows = examples(batch)
    if case is not None and case.penalties is not None:
        rows = penalized(rows, case.penalties)
    if case is not None and case.echo:
        rows = [dataclasses.replace(row, echo=~row.mask, echo_weight=case.echo / 30) for row in rows]
    return [pack(rows[:7], tokens_per_microbatch=24), pack(rows[7:], tokens_per_microbatch=24)]


async def streamed(team: LearnerTeam, folder: Path) -> dict[str, torch.Tensor]:
    """The weights as servers get them, bucket by bucket."""
    stream = WeightStream(weight_shapes(team), kept=DiskWeights(folder))
    sending = asyncio.create_task(team.run(SendWeights(stream)))
    got = {name: tensor.detach().clone() async for bucket in stream for name, tensor in bucket}
    stream.settle(True)
    assert [reply.answer for reply in await sending] == [True]
    return got


async def by_hand(team: LearnerTeam, batch: list[list[MicroBatch]], settings: LossSettings) -> LossStats:
    """`policy_step` without its gate and its measurements."""
    total = LossStats()
    for micros in [*batch[:1], *[await team.measured(micros, settings.temperature) for micros in batch[1:]]]:
        total.add(await team.forward_backward(micros, settings))
        await team.optim_step()
    return total


async def learned(team: LearnerTeam, found: list[LossStats]) -> dict[str, Any]:
    weights = await team.run(FullWeights(1))
    return {
        "stats": [{name: getattr(s, name) for name in LossStats.SUMS} for s in found],
        "kl": [s.mismatch.kl() for s in found],
        "worst": [[(w.trajectory, w.position) for w in s.worst] for s in found],
        "grad_norms": [norm for s in found for norm in s.grad_norms],
        "weights": {name: w.detach().clone() for name, w in weights},
    }


def fails_on_rank_1(tokens: PolicyTokens) -> torch.Tensor:
    if os.environ["RANK"] == "1":
        raise KeyError("alone")
    return -tokens.advantages_T * tokens.logprobs_T


async def lead_term(team: LearnerTeam, case: Case) -> dict[str, Any]:
    await team.use(SPEC)
    failing = dataclasses.replace(case.settings, loss=OwnLoss(f"{__file__}:fails_on_rank_1"))
    failed = await stopped(team, failing, updates(0)[:1]) if team.world.size > 1 else None
    found = [await team.policy_step(updates(batch, case), case.settings) for batch in range(2)]
    result = await learned(team, found) | {"failed": failed}
    await team.stop()
    return result


async def lead(team: LearnerTeam, settings: LossSettings, kept: Path, case: Case) -> dict[str, Any]:
    await team.use(SPEC)
    await team.run(LoadStart(kept / "start", Recipe(model=case.config)))
    found: list[LossStats] = [await team.imitation_step(updates(9)[0])]
    for batch in range(2):
        place = TokenStatsPath(folder=kept / "trajectories", step=batch)
        if case.by_hand:
            found.append(await by_hand(team, updates(batch), settings))
        else:
            found.append(await team.policy_step(updates(batch), settings, token_stats=place))
    result = await learned(team, found) | {
        "streamed": await streamed(team, kept),
        "dtypes": {str(p.dtype) for p in team.learner.model.parameters()},
    }
    await team.run(WriteWeights(kept, torch.bfloat16))
    result["published"] = result["saved"] = files(kept)
    if team.world.size in (1, 4):
        await team.save(Order(run_dir=kept, step=3, progress={}, keep_last=1, keep_every=0))
        await team.finish_saving()
        result["saved"] = files(kept / "checkpoints" / "step_3")
        result["folder"] = str(kept / "checkpoints" / "step_3")
    before = {name: p.grad.clone() for name, p in team.learner.model.named_parameters() if p.grad is not None}
    await team.run(ReleaseMemory())
    result["freed"] = team.rank.released
    result["gradients"] = sum(bytes_here(grad) for grad in before.values())
    result["learned"] = str(kept / "trajectories")
    result["spoiled"] = [await stopped(team, settings, bad) for bad in spoiled(team.world.size)]
    after = await team.run(FullWeights(2))
    result["weights_after"] = {name: w.detach().clone() for name, w in after}
    with torch.no_grad():
        next(team.learner.model.parameters()).mul_(math.nan)
    result["stopped"] = await stopped(team, settings, updates(0))
    await team.stop()
    return result


def files(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """The weights of each file."""
    return {path.name: load_file(path) for path in sorted(folder.glob("*.safetensors"))}


def spoiled(size: int) -> list[list[list[MicroBatch]]]:
    """Batches that each hold one thing that is no number, on the last rank alone: an advantage of the first
    update, a rollout log-prob of the second one, and the weight of a token."""
    found = []
    for update, name in enumerate(("advantages_T", "rollout_logprobs_T", "weights_T")):
        batch = updates(0)
        micros = batch[update % 2]
        micro = micros[size - 1]
        values = getattr(micro, name).clone()
        values[-1] = math.nan
        micros[size - 1] = dataclasses.replace(micro, **{name: values})
        found.append(batch)
    return found


async def stopped(team: LearnerTeam, settings: LossSettings, batch: list[list[MicroBatch]]) -> dict[str, Any] | None:
    """What rank 0 is told of a batch that stops the step; None if none did."""
    try:
        await team.policy_step(batch, settings)
    except NonFiniteGradientError as error:
        return {
            "message": str(error),
            "names": sorted(name for part in error.parts for name in part.micro.names_S if name),
            "norms": [part.grad_norm for part in error.parts],
            "bad": [part.micro.names_S for part in error.parts if part.micro.unusable(VOCAB)],
        }
    return None


def learn(rank: int, size: int, out: Path) -> None:
    torch.set_num_threads(1)
    world = World.join()
    assert (world.rank, world.size) == (rank, size)
    for name, case in (CASES | TERMS).items():
        if size not in case.sizes:
            continue
        model = build(case)
        world = dataclasses.replace(world, local_size=size // case.nodes)
        shard(model, world, case.config)
        with ThreadPoolExecutor(1) as thread:
            team = LearnerTeam(model, world, thread)
            if rank:
                team.follow()
                continue
            if name in TERMS:
                (out / "terms").mkdir(exist_ok=True)
                torch.save(asyncio.run(lead_term(team, case)), out / "terms" / f"{name} {size}.pt")
                continue
            settings = dataclasses.replace(case.settings, measures_start=name not in ("checkpointing", "by hand"))
            kept = out / "kept" / f"{name} {size}"
            kept.mkdir(parents=True)
            build(case).save_pretrained(kept / "start")
            torch.save(asyncio.run(lead(team, settings, kept, case)), out / f"{name} {size}.pt")
    world.leave()


def fork(size: int, out: Path, work: Callable[[int, int, Path], None]) -> None:
    """Do the work on so many ranks, each a process; it is given its rank, their number and `out`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(size):
        child = os.fork()
        if not child:
            os.environ |= {
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            try:
                work(rank, size, out)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            sys.stdout.flush()
            os._exit(0)
        children.append(child)
    while children:
        child, status = os.wait()
        children.remove(child)
        if status:  # the others would wait for it
            for other in children:
                os.kill(other, signal.SIGKILL)
            sys.exit(f"one of {size} ranks ended with {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    gather.FILE_BYTES = gather.BUCKET_BYTES = 16_000  # the models here are of some 40,000 bytes
    for number in SIZES:
        fork(number, Path(sys.argv[1]), learn)

"""A step's data on rank 0: CPU from the last group to the first microbatch, bytes on disk, the loop's lag.

    python benchmarks/bench_step_data.py --out benchmarks/results/step_data.json

Synthetic groups of 32 trajectories of 6,450 tokens, at three sizes up to 1/32 of a step of 16,384; figures of
that step are the largest's times what it lacks, and the three show whether that is right. Seven eighths of
the groups come as bytes from other nodes (engine/nodes/wire.py). All are journaled as they end, then select,
RoC, metrics and packing for 64 ranks run as in a step, 63 ranks' microbatches are sent over gloo, all to one
process on loopback that throws them away, then what became of all tokens is written, where a rank writes its
own, and the index; a loop with the gauge of a run watches all of it. Tokens are those of this repository's
text and code under a BPE of 16,000 words, spread over ids up to 151,936; log-probs are float32, of sampled
tokens of which three quarters are nearly certain.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import itertools
import pickle
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import uvloop

sys.path.insert(0, str(Path(__file__).parent))
from sandbox_bench.report import ROOT, bar, finish
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from rocstar.engine.garbage import settled_garbage
from rocstar.engine.nodes.node import GroupOrder
from rocstar.engine.nodes.wire import encode_group, opened_group
from rocstar.engine.rollout.rollout import RolloutLimits
from rocstar.engine.types import (
    FinishReason,
    Group,
    Origin,
    Scored,
    Segment,
    Span,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    TrajectoryKey,
    TrajectoryTimes,
    Turn,
    TurnTimes,
    VersionSpan,
)
from rocstar.train.groups.journal import Journal
from rocstar.train.groups.source import Batch
from rocstar.train.learner.balance import Cost
from rocstar.train.learner.batch import MicroBatch, share_out
from rocstar.train.learner.marks import MarksPlace, MarksWriter, TokenMarks
from rocstar.train.learner.parcel import Parcel, ParcelHeader
from rocstar.train.learner.settings import loss_settings
from rocstar.train.learner.team import send_messages
from rocstar.train.loop import prepare
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.rl_config import RlConfig
from rocstar.train.record.loop_lag import LoopLag

QWEN3_14B = Cost(per_token=2 * 13.2e9, per_pair=4.0 * 40 * 5120, per_target=2.0 * 5120 * 151936)
STEP, SIBLINGS, PROMPT, LENGTH, VOCAB = 16_384, 32, 300, 6_450, 151_936
TURNS, NODES, IN_FLIGHT, RANKS = 6, 8, 8, 64
SINK = "--sink"
POLICY = 0.85
"""The share that the policy wrote of a turn and its tool's answer."""
LIMITS = RolloutLimits(max_response_tokens=LENGTH, max_turns=TURNS, max_tool_tokens=512, timeout_s=3600.0)


class Corpus:
    """Token ids of real text, and the text of ids."""

    def __init__(self) -> None:
        names = sorted([*ROOT.glob("*/**/*.py"), *ROOT.glob("docs/**/*.md")])
        texts = [path.read_text(encoding="utf-8") for path in names if ".venv" not in path.parts]
        bpe = Tokenizer(models.BPE())
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        bpe.decoder = decoders.ByteLevel()
        bpe.train_from_iterator(texts[::3], trainers.BpeTrainer(vocab_size=16_000, show_progress=False))
        spread = np.sort(np.random.default_rng(0).permutation(VOCAB)[: bpe.get_vocab_size()])
        self.ids = spread[np.concatenate([np.array(bpe.encode(text).ids, int) for text in texts])]
        self._text = {int(big): bpe.decode([small]) for small, big in enumerate(spread)}

    def draw(self, rng: np.random.Generator, length: int) -> np.ndarray[Any, Any]:
        start = int(rng.integers(len(self.ids) - length))
        return self.ids[start : start + length]

    def decode(self, ids: Any) -> str:
        return "".join(map(self._text.__getitem__, ids))


def sampled_logprobs(rng: np.random.Generator, number: int) -> np.ndarray[Any, Any]:
    """Log-probs of tokens that a policy drew, log(1 / (1 + e^-margin)), as a softmax in float32 has them."""
    margin = np.where(rng.random(number) < 0.75, rng.gamma(4.0, 2.0, number), rng.normal(0.0, 1.5, number))
    return -np.log(np.float32(1.0) + np.exp(-margin).astype(np.float32))


def trajectory(corpus: Corpus, task: Task, prompt: Any, sibling: int, seed: int) -> Trajectory:
    rng = np.random.default_rng((seed, sibling))
    shares = [0.0, *np.cumsum([POLICY if n % 2 == 0 else 1.0 - POLICY for n in range(2 * TURNS - 1)])]
    edges = (PROMPT + np.array(shares) / shares[-1] * (LENGTH - PROMPT)).astype(int).tolist()
    ids = np.concatenate([prompt, corpus.draw(rng, LENGTH - PROMPT)]).astype(np.int32)
    logprobs = np.full(LENGTH, np.nan, np.float32)
    segments, turns = [Segment(start=0, end=PROMPT, origin=Origin.prompt)], []
    for n, (start, end) in enumerate(itertools.pairwise(edges)):
        origin = Origin.tool if n % 2 else Origin.policy
        segments.append(Segment(start=start, end=end, origin=origin))
        text = corpus.decode(ids[start:end].tolist())
        if origin is Origin.policy:
            logprobs[start:end] = sampled_logprobs(rng, end - start)
            call = ToolCall(name="python", arguments={"code": text[len(text) // 2 :]})
            turns.append(Turn(start=start, end=end, text=text, stopped=True, calls=(call,)))
        else:
            result = ToolResult(status="ok", is_error=bool(rng.random() < 0.1), text=text)
            turns[-1] = dataclasses.replace(turns[-1], results=(result,))
    right = bool(rng.random() < 0.5)
    spans = np.cumsum(rng.gamma(2.0, 10.0, 2 * TURNS)).tolist()
    times = TrajectoryTimes(
        began=1.7e9 + float(rng.random()),
        ended_s=spans[-1],
        granted_s=spans[0] / 2,
        turns=tuple(
            TurnTimes(written=Span(*spans[2 * k : 2 * k + 2]), calls=(Span(*spans[2 * k + 1 : 2 * k + 3]),))
            for k in range(TURNS - 1)
        ),
    )
    return Trajectory(
        key=TrajectoryKey(seed=0, step=1, task_id=task.id, sibling=sibling),
        task=task,
        ids=ids,
        logprobs=logprobs,
        segments=tuple(segments),
        version_spans=tuple(
            VersionSpan(start=s.start, end=s.end, version=0) for s in segments if s.origin is Origin.policy
        ),
        turns=tuple(turns),
        finish_reason=FinishReason.answered,
        outcome=Scored(reward=float(right), method="strict"),
        times=times,
    )


def group(corpus: Corpus, number: int) -> Group:
    rng = np.random.default_rng(number)
    prompt = corpus.draw(rng, PROMPT)
    task = Task(id=f"task{number:05d}", source="s", question=corpus.decode(prompt.tolist()), answer="42")
    return Group(
        task=task,
        trajectories=tuple(trajectory(corpus, task, prompt, k, number) for k in range(SIBLINGS)),
    )


def marks_of(updates: Sequence[Sequence[MicroBatch]]) -> TokenMarks:
    """What a learner in bfloat16 might make of the tokens, in two updates: all microbatches are on one rank
    here, where a step has 64. Gaps of a hundredth, ratios of a fiftieth, entropy of a token that is nearly
    certain three times in four."""
    marks, generator = TokenMarks(), torch.Generator().manual_seed(0)
    for k, micro in enumerate(micro for micros in updates for micro in micros):
        number = micro.num_loss_tokens

        def noise(scale: float, number: int = number) -> torch.Tensor:
            spread = torch.randn(number, generator=generator).exp()
            return scale * spread * torch.randn(number, generator=generator)

        start_T = micro.rollout_logprobs_T + noise(0.01)
        certain_T = torch.rand(number, generator=generator) < 0.75
        current_T = start_T + (noise(0.02) if k % 2 else 0.0)
        marks.hear(
            micro,
            logprobs_T=current_T,
            old_logprobs_T=start_T if k % 2 else None,
            entropy_T=noise(0.5).abs() * torch.where(certain_T, 0.02, 1.0),
            code_T=((current_T - start_T) > 0.25).to(torch.int8),
        )
    return marks


def order_of(task: Task) -> GroupOrder:
    return GroupOrder(task=task, step=1, seed=0, size=SIBLINGS, limits=LIMITS, temperature=1.0)


def _join(port: int, rank: int) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)


def sink(port: int) -> None:
    """Take what `scatter` sends, until it sends nothing more."""
    _join(port, 1)
    while True:
        headers: list[Any] = [None]
        dist.broadcast_object_list(headers, src=0)
        if headers[0] is None:
            return
        found: list[ParcelHeader] = pickle.loads(headers[0])
        for header in found:
            dist.recv(torch.empty(header.num_bytes, dtype=torch.uint8), src=0)


@contextlib.contextmanager
def other_ranks() -> Iterator[None]:
    """A process that stands for all ranks but this one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([sys.executable, __file__, SINK, str(port)]) as process:
        _join(port, 0)
        try:
            yield
            dist.broadcast_object_list([None], src=0)
        finally:
            dist.destroy_process_group()
            process.wait()


def scatter(updates: Sequence[Sequence[MicroBatch]], settings: Any) -> int:
    """As LearnerTeam scatters a step's microbatches; the bytes of all messages."""
    shares = [share_out(micros, RANKS) for micros in updates]
    payloads = [([share[rank] for share in shares], settings, 0) for rank in range(RANKS)]
    parcels = [Parcel.of(("policy_step", payload)) for payload in payloads]
    dist.broadcast_object_list([pickle.dumps([parcel.header for parcel in parcels[1:]])], src=0)
    send_messages(parcels, [0] + [1] * (RANKS - 1))
    return sum(parcel.header.num_bytes for parcel in parcels[1:])


async def step(corpus: Corpus, num_groups: int, folder: Path) -> dict[str, Any]:
    """One step's data from its groups to its index, on a loop that is watched."""
    recipe = Recipe(rl=RlConfig(rollouts_per_task=SIBLINGS, group_size=16, tokens_per_microbatch=20_480))
    made = [await asyncio.to_thread(group, corpus, k) for k in range(num_groups)]
    sent = [None if k % NODES == 0 else encode_group(one) for k, one in enumerate(made)]
    room, ended = asyncio.Semaphore(IN_FLIGHT), list[Group]()
    journal = Journal(folder, {"recipe": "bench"}, decode=corpus.decode, goes_on=False)

    async def ends(k: int) -> None:
        """A group comes, from here or from another node, and is written."""
        async with room:
            one, body = made[k], sent[k]
            if body is not None:
                one = await opened_group(body, order_of(one.task))
            await journal.ended(1, one)
            ended.append(one)

    with settled_garbage(), LoopLag() as lag:
        async with journal:
            began, wall = time.process_time(), time.perf_counter()
            await asyncio.gather(*(ends(k) for k in range(num_groups - 1)))
            rollouts_s, rollouts_lag = time.process_time() - began, lag.take()
            began, since = time.process_time(), time.perf_counter()
            await ends(num_groups - 1)
            batch = Batch(groups=ended, staleness=0)
            selection, _, updates = await asyncio.to_thread(
                prepare, batch, recipe, step=1, ranks=RANKS, cost=QWEN3_14B
            )
            prepare_s, prepare_wall_s = time.process_time() - began, time.perf_counter() - since
            prepare_lag = lag.take()
            began, since = time.process_time(), time.perf_counter()
            sent_bytes = await asyncio.to_thread(scatter, updates, loss_settings(recipe))
            scatter_s, scatter_wall_s = time.process_time() - began, time.perf_counter() - since
            scatter_lag = lag.take()
            marks = await asyncio.to_thread(marks_of, updates)
            began = time.process_time()
            writer = MarksWriter(0, 1)
            lag.take()
            writer.begin(MarksPlace(folder=journal.folder, step=1), marks)
            problem = await asyncio.to_thread(writer.settle)
            assert not problem, problem
            marks_written_s, marks_lag = time.process_time() - began, lag.take()
            began = time.process_time()
            await journal.seal(1, selection.verdicts, stage="one")
            await journal.settled()
            seal_s, seal_lag = time.process_time() - began, lag.take()
    tokens = num_groups * SIBLINGS * LENGTH
    files = {path.suffix: path.stat().st_size for path in (folder / "trajectories").iterdir()}
    learned = files.pop(".learned")
    learned_tokens = sum(micro.num_loss_tokens for micros in updates for micro in micros)
    policy = sum(t.num_policy_tokens for one in made for t in one.trajectories)
    return {
        "trajectories": num_groups * SIBLINGS,
        "microbatches": sum(map(len, updates)),
        "kept": len(selection.kept),
        "prepare_cpu_s": round(prepare_s, 3),
        "prepare_wall_s": round(prepare_wall_s, 3),
        "scatter_cpu_s": round(scatter_s, 3),
        "scatter_wall_s": round(scatter_wall_s, 3),
        "scatter_bytes_per_kept_token": round(
            sent_bytes * RANKS / (RANKS - 1) / (len(selection.kept) * LENGTH), 2
        ),
        "rollouts_cpu_s": round(rollouts_s, 3),
        "seal_cpu_s": round(seal_s, 3),
        "marks_cpu_s": round(marks_written_s, 3),
        "marks_ns_a_token": round(marks_written_s / learned_tokens * 1e9, 1),
        "marks_bytes_a_learned_token": round(learned / learned_tokens, 3),
        "bytes_per_token_with_marks": round((sum(files.values()) + learned) / tokens, 3),
        "index_share_of_bytes": round(files[".index"] / sum(files.values()), 4),
        "wall_s": round(time.perf_counter() - wall, 2),
        "bytes_per_token": round(sum(files.values()) / tokens, 3),
        "policy_share": round(policy / tokens, 3),
        "index_bytes_per_trajectory": round(files[".index"] / (num_groups * SIBLINGS)),
        "lag_p99_s": {
            "while groups end": round(rollouts_lag["time/loop_lag_p99"], 4),
            "while the step is prepared": round(prepare_lag["time/loop_lag_p99"], 4),
            "while microbatches are sent": round(scatter_lag.get("time/loop_lag_p99", 0.0), 4),
            "while the index is written": round(seal_lag.get("time/loop_lag_p99", 0.0), 4),
            "while marks are written": round(marks_lag.get("time/loop_lag_p99", 0.0), 4),
        },
        "lag_max_s": round(
            max(
                one.get("time/loop_lag_max", 0.0)
                for one in (rollouts_lag, prepare_lag, scatter_lag, seal_lag, marks_lag)
            ),
            4,
        ),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, nargs="+", default=[4, 8, 16], help="of 32 trajectories")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    corpus, sizes = Corpus(), []
    with other_ranks():
        for num_groups in options.groups:
            with tempfile.TemporaryDirectory() as folder:
                sizes.append(uvloop.run(step(corpus, num_groups, Path(folder))))
            print(sizes[-1], flush=True)
    last = sizes[-1]
    factor = STEP / last["trajectories"]
    extrapolated = {
        name: round(last[name] * factor, 1)
        for name in ("prepare_cpu_s", "scatter_cpu_s", "rollouts_cpu_s", "seal_cpu_s", "marks_cpu_s")
    }
    to_learner = round(extrapolated["prepare_cpu_s"] + extrapolated["scatter_cpu_s"], 1)
    growth = [
        round((size["prepare_cpu_s"] + size["scatter_cpu_s"]) / size["trajectories"] * 1e3, 3)
        for size in sizes
    ]  # ms a trajectory
    bars = [
        bar("CPU s from the last group to the first microbatch, 16,384 trajectories",
            to_learner, 15.0, at_most=True),
        bar("bytes a token on the disk", last["bytes_per_token"], 8.0, at_most=True),
        bar("the same with what the learner made of each", last["bytes_per_token_with_marks"], 8.0,
            at_most=True),
        bar("share of the index in these bytes", last["index_share_of_bytes"], 0.03, at_most=True),
        bar("loop lag p99, s", max(last["lag_p99_s"].values()), 0.05, at_most=True),
        bar("ms of a trajectory at the largest size over that at the smallest", growth[-1] / growth[0], 1.5,
            at_most=True),
    ]  # fmt: skip
    result = {
        "tokens_of_a_trajectory": LENGTH,
        "extrapolated_to_16384": extrapolated,
        "prepare_ms_a_trajectory": growth,
        "sizes": sizes,
    }
    return finish("step_data", result, bars, options.out)


if __name__ == "__main__":
    if sys.argv[1:2] == [SINK]:
        sys.exit(sink(int(sys.argv[2])))
    raise SystemExit(main())

"""The embedded engine against the continuous batching of transformers, on ragged multi-turn work.

    taskset -c 1 python benchmarks/bench_embedded.py

A tiny random Qwen3 (2.8M parameters, float32), one thread. Groups of siblings share a prompt; each trajectory
has one to four turns, and behind every turn but the last a tool's text is appended. Lengths are drawn once
(log-normal completions with a tail) and are the same for both sides, and so are prompts and tool texts; both
sample at temperature 1 and return a log-prob per token. The peer gets every turn as a request of its own with
all the tokens so far, as soon as the turn before it is done; its settings may share the blocks of equal
prefixes. Both sides have run once before they are timed, on other prompts. Rounds in turn in one process;
medians of CPU time and of wall time; the bar takes the smaller ratio, against the best setting of the peer.

Log-probs of both sides are compared with a plain forward of the model.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import transformers
from report import claim, finish, result_parser
from transformers import ContinuousBatchingConfig, GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from rocstar.engine.inference.base import Sampling
from rocstar.engine.inference.embedded.embedded import EmbeddedEngine

SPEED_BAR = 1.3
TOLERANCE = 1e-5
SIBLINGS, SLOTS = 8, 64
PEER_TIMEOUT_S = 120.0
"""Limit of one turn of the peer."""
VOCABULARY, LONGEST = 2048, 1024
SETTINGS: dict[str, dict[str, Any]] = {
    "pages of 32, shared": {"page_size": 32},
    "pages of 256, shared": {"page_size": 256},
    "pages of 32, not shared": {"page_size": 32, "allow_block_sharing": False},
    "pages of 32, shared, prefill first": {"page_size": 32, "scheduler_type": "prefill_first"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A trajectory whose lengths are given: per turn its new tokens and the tool text behind it."""

    prompt: list[int]
    turns: list[tuple[int, list[int]]]


@dataclass(slots=True, kw_only=True)
class Said:
    """One turn as it was generated."""

    before: list[int]
    ids: list[int]
    logprobs: list[float]


Turns = dict[int, list[Said]]


def scripts(count: int, siblings: int, seed: int, *, vocabulary: int = VOCABULARY) -> list[Script]:
    rng = random.Random(seed)

    def text(low: int, high: int) -> list[int]:
        return [rng.randrange(vocabulary) for _ in range(rng.randint(low, high))]

    made = []
    for k in range(count):
        prompt = text(30, 80) if k % siblings == 0 else made[-1].prompt
        turns = [
            (min(160, 4 + int(rng.lognormvariate(3.0, 0.7))), text(8, 30)) for _ in range(rng.choice([1, 2, 2, 3, 4]))
        ]
        made.append(Script(prompt=prompt, turns=turns))
    return made


def tiny_model() -> Any:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=LONGEST,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM._from_config(config, attn_implementation="sdpa").eval()


def timed(run: Callable[[list[Script], int], Turns], work: list[Script], seed: int) -> tuple[float, float, Turns]:
    """CPU and wall seconds of the whole process, and the turns."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    turns = run(work, seed)
    return time.process_time() - cpu, time.perf_counter() - wall, turns


class Ours:
    """One engine, entered once; `run` rolls all scripts out at once."""

    def __init__(self, model: Any, slots: int) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._thread.submit(torch.set_num_threads, 1).result()
        self._engine = EmbeddedEngine(model, max_running=slots, thread=self._thread)
        self._runner = asyncio.Runner()
        self._runner.run(self._engine.__aenter__())

    def run(self, work: list[Script], seed: int) -> Turns:
        return self._runner.run(self._all(work, seed))

    async def _all(self, work: list[Script], seed: int) -> Turns:
        said: Turns = {}

        async def one(k: int, script: Script) -> None:
            ids, said[k] = list(script.prompt), []
            for length, tool in script.turns:
                got = await self._engine.generate(
                    ids,
                    max_new_tokens=length,
                    stop_ids=frozenset(),
                    sampling=Sampling(),
                    seed=seed + k,
                    request_id=str(k),
                    deadline=None,
                )
                said[k].append(Said(before=ids, ids=list(got.ids), logprobs=list(got.logprobs)))
                ids = [*ids, *got.ids, *tool]
            self._engine.release(str(k))

        async with asyncio.TaskGroup() as group:
            for k, script in enumerate(work):
                group.create_task(one(k, script))
        return said

    def close(self) -> None:
        self._runner.run(self._engine.__aexit__(None, None, None))
        self._runner.close()
        self._thread.shutdown()


def batching_config(*, page_size: int, **rest: Any) -> ContinuousBatchingConfig:
    """The peer's settings; transformers 5.17 names the page size `block_size`."""
    names = {field.name for field in dataclasses.fields(ContinuousBatchingConfig)}
    name = "page_size" if "page_size" in names else "block_size"
    return ContinuousBatchingConfig(**{name: page_size}, **rest)


class Peer:
    """One manager of transformers' continuous batching, started once.

    Args:
        model: on its device.
        slots: requests that run at once; the cache holds half of the longest text for each.
        setting: see `batching_config`.
        use_cuda_graph: capture forwards; False on a CPU.
        timeout_s: for one turn, RuntimeError after that.
    """

    def __init__(
        self,
        model: Any,
        slots: int,
        setting: dict[str, Any],
        *,
        use_cuda_graph: bool = False,
        timeout_s: float = PEER_TIMEOUT_S,
    ) -> None:
        longest = model.config.max_position_embeddings
        self._timeout_s = timeout_s
        self._manager = model.init_continuous_batching(
            generation_config=GenerationConfig(
                do_sample=True, temperature=1.0, top_k=0, top_p=1.0, eos_token_id=-1, max_new_tokens=longest
            ),
            continuous_batching_config=batching_config(
                **setting,
                return_logprobs=True,
                use_cuda_graph=use_cuda_graph,
                num_blocks=slots * longest // 2 // setting["page_size"],
                max_batch_tokens=2048,
                max_requests_per_batch=slots,
                seed=0,
            ),
        )
        self._manager.start()

    def run(self, work: list[Script], seed: int) -> Turns:
        said: Turns = {k: [] for k in range(len(work))}

        def ask(k: int, ids: list[int]) -> None:
            turn = len(said[k])
            length, _ = work[k].turns[turn]
            self._manager.add_request(ids, request_id=f"{seed}/{k}/{turn}", max_new_tokens=length)

        for k, script in enumerate(work):
            ask(k, script.prompt)
        left = sum(len(script.turns) for script in work)
        while left:
            got = self._result()
            left -= 1
            k = int(got.request_id.split("/")[1])
            turns = said[k]
            before = turns[-1].before + turns[-1].ids + work[k].turns[len(turns) - 1][1] if turns else work[k].prompt
            turns.append(Said(before=before, ids=list(got.generated_tokens), logprobs=list(got.logprobs)))
            if len(turns) < len(work[k].turns):
                ask(k, before + turns[-1].ids + work[k].turns[len(turns) - 1][1])
        return said

    def _result(self) -> Any:
        """The next turn. RuntimeError when its request or its thread failed, or time is up."""
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline:
            got = self._manager.get_result(timeout=1)
            if got is not None and got.error:
                raise RuntimeError(f"the peer failed: {got.error}")
            if got is not None:
                return got
            if not self._manager.is_running():
                raise RuntimeError("the peer's thread ended")
        raise RuntimeError(f"the peer gave no result within {self._timeout_s:.0f} s")

    def close(self) -> None:
        self._manager.stop(block=True)


@torch.inference_mode()
def largest_error(model: Any, turns: Turns, work: list[Script], checked: int) -> float:
    """Largest error of the log-probs of the first trajectories against a plain forward of `model`.

    ValueError: a trajectory of another length."""
    worst = 0.0
    for k, script in enumerate(work):
        if [len(said.ids) for said in turns[k]] != [length for length, _ in script.turns]:
            raise ValueError(f"trajectory {k} has other lengths than its script")
        for said in turns[k] if k < checked else ():
            ids = torch.tensor([said.before + said.ids], device=model.device)
            logits = model(ids).logits[0, len(said.before) - 1 : -1].float()
            true = logits.log_softmax(-1).gather(1, ids[0, len(said.before) :, None])[:, 0].cpu()
            worst = max(worst, float((true - torch.tensor(said.logprobs)).abs().max()))
    return worst


def main() -> int:
    parser = result_parser(__doc__)
    parser.add_argument("--trajectories", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    work = scripts(options.trajectories, SIBLINGS, seed=1)
    warm = scripts(SIBLINGS, SIBLINGS, seed=2)
    tokens = sum(length for script in work for length, _ in script.turns)
    rows: dict[str, dict[str, list[float]]] = {
        name: {"cpu": [], "wall": [], "error": []} for name in ("rocstar", *SETTINGS)
    }
    for number in range(options.rounds):
        for name, row in rows.items():
            # One at a time: a manager that waits for requests is not free.
            model = tiny_model()
            side = Peer(model, SLOTS, SETTINGS[name]) if name in SETTINGS else Ours(model, SLOTS)
            side.run(warm, 1 << 32)
            cpu, wall, turns = timed(side.run, work, number * 1000)
            side.close()
            row["cpu"].append(cpu)
            row["wall"].append(wall)
            row["error"].append(largest_error(tiny_model(), turns, work, 4 if number == 0 else 0))
            told = f"{tokens / cpu:.0f} tokens per CPU second, {wall:.2f} s"
            print(f"round {number + 1}: {name}: {told}", flush=True)
    result = {
        name: {
            "tokens_per_cpu_s": round(tokens / median(row["cpu"]), 1),
            "tokens_per_s": round(tokens / median(row["wall"]), 1),
            "cpu_s_rounds": [round(x, 3) for x in row["cpu"]],
            "wall_s_rounds": [round(x, 3) for x in row["wall"]],
            "largest_logprob_error": max(row["error"]),
        }
        for name, row in rows.items()
    }
    ratios = {
        kind: result["rocstar"][kind] / max(result[name][kind] for name in SETTINGS)
        for kind in ("tokens_per_cpu_s", "tokens_per_s")
    }
    error, best = result["rocstar"]["largest_logprob_error"], "the best setting of transformers on a CPU"
    claims = [
        claim(f"tokens per second over {best}, embedded engine", min(ratios.values()), at_least=SPEED_BAR),
        claim("largest error of a log-prob of the embedded engine", error, "nats", at_most=TOLERANCE),
    ]
    about = {
        "tokens": tokens,
        "turns": sum(len(script.turns) for script in work),
        **{"trajectories": options.trajectories, "siblings": SIBLINGS, "rounds": options.rounds},
        "torch": torch.__version__,
        "peer": f"transformers {transformers.__version__}, ContinuousBatchingManager",
        "ratios": {kind: round(value, 3) for kind, value in ratios.items()},
    }
    return finish("embedded", {**about, "sides": result}, claims, options.out, seeds=[1])


if __name__ == "__main__":
    sys.exit(main())

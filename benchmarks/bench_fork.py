"""The cost of a fork at 2,000 tokens: its conversation, its interpreter and its keys and values.

    taskset -c 1 python benchmarks/bench_fork.py

The keys and values are those of the quickstart's model (float32). A parent of 2,000 tokens and ten cells forks again
and again: its ids, log-probs and turns are copied, its interpreter, and its KV into the slot of the branch. The second
figure has a process on the same core that computes without end. What a branch computes later (its tool's tokens, its
cells again) is not a part of it.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import torch
from report import claim, finish, result_parser

from rocstar.engine.inference.base import Sampling
from rocstar.engine.inference.embedded.kv import SlotKv
from rocstar.engine.inference.embedded.rows import DecodeRequest
from rocstar.engine.inference.embedded.slots import Slots
from rocstar.engine.rollout.clock import TrajectoryClock
from rocstar.engine.rollout.rollout import Draft, Policy, RolloutLimits
from rocstar.engine.tools.jupyter import Interpreter
from rocstar.engine.types import Origin, Segment, Task, ToolResult, TrajectoryKey, Turn
from rocstar.sandbox.types import Limits, Status

TOKENS, QUIET_BAR_MS, LOAD_BAR_MS = 2000, 1.0, 5.0
ANY: Any = None


async def forks(rounds: int) -> list[float]:
    """Milliseconds of each fork, in order of size."""
    limits = RolloutLimits(max_response_tokens=8192, max_turns=20, max_tool_tokens=256, timeout_s=1e6)
    policy = Policy(inference=ANY, chat=ANY, limits=limits, sampling=Sampling())
    key, task = (
        TrajectoryKey(seed=0, step=1, task_id="t", sibling=0),
        Task(id="t", source="s", question="q", answer="1"),
    )
    kv = SlotKv(num_layers=3, num_kv_heads=3, head_dim=16, dtype=torch.float32, device=torch.device("cpu"))
    kv.reserve(4, TOKENS + 64)
    slots, loop = Slots(kv, 4), asyncio.get_running_loop()

    def request(name: str, ids: list[int], parent: str | None = None) -> DecodeRequest:
        some: dict[str, Any] = {"max_new_tokens": 8, "stop_ids": frozenset(), "temperature": 1.0, "seed": 1}
        return DecodeRequest(row_id=name, ids=ids, parent=parent, future=loop.create_future(), **some)

    made = []
    with TrajectoryClock(1e6) as clock:
        trunk = Draft(policy=policy, task=task, key=key, clock=clock, is_dialogue=False)
        trunk.ids, trunk.logprobs = list(range(TOKENS)), [-0.5] * TOKENS
        trunk.segments = [Segment(start=k, end=k + 20, origin=Origin.policy) for k in range(0, TOKENS, 20)]
        result = ToolResult(status="ok", is_error=False, text="1")
        trunk.turns = [Turn(start=0, end=20, text="x", stopped=True, results=(result,)) for _ in range(10)]
        interpreter = Interpreter(ANY, flavour="stdlib", limits=Limits(), seed=1)
        interpreter._cells = [("x = 1", Status.OK)] * 10
        slots.start(request("parent", trunk.ids))
        slots.rows["parent"].cached = TOKENS - 1
        for number in range(rounds):
            await asyncio.sleep(0)
            began = time.perf_counter()
            branch = replace(trunk, key=key.behind(10, 1), ids=[], logprobs=[], segments=[], turns=[], written=[])
            branch.follow(trunk)
            interpreter.branch()
            slots.start(request(f"branch {number}", branch.ids, "parent"))
            made.append(1e3 * (time.perf_counter() - began))
            row = slots.rows[f"branch {number}"]
            assert row.cached == TOKENS - 1
            slots.stop(row)
            slots.release(row)
    return sorted(made)


def main() -> int:
    parser = result_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    asyncio.run(forks(50))
    quiet = asyncio.run(forks(options.rounds))
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        loaded = asyncio.run(forks(options.rounds))
        busy.kill()
    claims = [
        claim("median time of a fork", quiet[len(quiet) // 2], "ms", at_most=QUIET_BAR_MS),
        claim("99th percentile beside a busy process", loaded[len(loaded) * 99 // 100], "ms", at_most=LOAD_BAR_MS),
    ]
    return finish("fork", {"tokens": TOKENS, "rounds": options.rounds}, claims, options.out)


if __name__ == "__main__":
    sys.exit(main())

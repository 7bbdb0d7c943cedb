"""Forks over SGLang servers: a branch sends its parent's ids and a seed of its own, and outlives its server."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocstar.engine.fleet.fleet import Fleet
from rocstar.engine.inference.base import Inference
from rocstar.engine.inference.sglang.api import Api
from rocstar.engine.inference.sglang.replica import Replica, server_command
from rocstar.engine.inference.weights import DiskWeights
from rocstar.engine.rollout.forks import ForkRule, after_an_error
from rocstar.engine.rollout.group import run_group
from rocstar.engine.scheduling.policies import make_policy
from rocstar.engine.seeds import stream_of
from rocstar.engine.types import Trajectory
from tests.fakes.agents import TASK, TOKENIZER, make_agent, python_tools, tool_call
from tests.fakes.sandbox import FakeSandbox, error
from tests.fakes.scripted_policy import ScriptedPolicy, check_trajectory
from tests.fakes.sglang.fake import FakeRequest
from tests.fakes.sglang.fake_model import VOCAB
from tests.fakes.sglang.fake_process import InProcess
from tests.fakes.sglang.fake_server import FakeServer

START, END = TOKENIZER.id_of("<|im_start|>"), TOKENIZER.id_of("<|im_end|>")
HEAD = 1 + len(TOKENIZER.encode("assistant\n"))
RULE = ForkRule(chooses=after_an_error, width=3)


def reply(ids: Sequence[int]) -> str:
    """A call, which fails; then the answer."""
    return "the answer is 4" if "<tool_call>" in TOKENIZER.decode(ids) else tool_call("bad")


def script(ids: tuple[int, ...], written: int) -> int | None:
    """The next id of the reply, of which a part may have come from another server; None of a client's probes."""
    if START not in ids:
        return None
    start = len(ids) - ids[::-1].index(START) - 1
    said = [*TOKENIZER.encode(reply(ids[:start])), END]
    return said[len(ids) - start - HEAD + written]


async def roll(inference: Inference) -> list[Trajectory]:
    tools = python_tools(FakeSandbox(lambda request: error("ValueError\n")))
    agent = make_agent(inference, tools=tools, max_response_tokens=600)
    group = await run_group(agent, TASK, size=2, seed=1, step=2, forks=RULE)
    for trajectory in group.trajectories:
        check_trajectory(trajectory)
    return list(group.trajectories)


def of_servers(launcher: InProcess, model: Path, folder: Path, number: int) -> list[Trajectory]:
    """Roll out over a fleet of so many servers."""
    source = DiskWeights(model)

    async def main() -> list[Trajectory]:
        made = [
            Replica(
                lambda port: server_command("python", model, port, {}),
                model=source,
                vocab_size=VOCAB,
                log_path=folder / f"{k}.log",
                launcher=launcher,
                engine_options={"watch_every_s": 0.02},
            )
            for k in range(number)
        ]
        async with AsyncExitStack() as stack:
            for replica in made:
                await stack.enter_async_context(replica)
            fleet = await stack.enter_async_context(Fleet(made, policy=make_policy("round_robin")))
            return await roll(fleet)

    return asyncio.run(main())


def parts(trajectories: Sequence[Trajectory]) -> list[Any]:
    """What a policy without a model has as well: all but log-probs and times."""
    return [
        (t.key, t.ids.tolist(), t.segments, t.version_spans, t.turns, t.fork, t.finish_reason, t.outcome)
        for t in trajectories
    ]


def test_a_branch_sends_its_parents_ids_and_a_seed_of_its_own(
    checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    real = Api.generate

    async def generate(api: Api, body: dict[str, Any]) -> dict[str, Any]:
        answer = await real(api, body)
        sent.setdefault(body["rid"].partition("#")[0], []).append((body, answer))
        return answer

    monkeypatch.setattr(Api, "generate", generate)
    got = of_servers(InProcess(script=script, seeded=True), checkpoints["a"], tmp_path, 1)
    policy = ScriptedPolicy(lambda request: reply(request.ids), TOKENIZER, vocab_size=VOCAB)
    assert parts(got) == parts(asyncio.run(roll(policy)))
    assert [str(t.key) for t in got] == [f"s2/t/{k}{branch}" for k in (0, 1) for branch in ("", "~1.1", "~1.2")]
    seeds = set()
    for t in got:
        bodies = [body for body, _ in sent[str(t.key)]]
        turns = t.own_turns
        assert [body["input_ids"] for body in bodies] == [t.ids[: turn.start].tolist() for turn in turns]
        assert {body["sampling_params"]["sampling_seed"] for body in bodies} == {stream_of(t.key) & (1 << 63) - 1}
        seeds |= {body["sampling_params"]["sampling_seed"] for body in bodies}
        if t.fork is not None:
            cached = sent[str(t.key)][0][1]["meta_info"]["cached_tokens"]
            assert t.turns[0].end - 1 <= cached < t.fork.start, "the server has all but the tool's result"
    assert len(seeds) == len(got)


def test_a_server_that_dies_in_a_branch_costs_no_token(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    died: list[str] = []

    def dies(server: FakeServer) -> None:
        real = server.scheduler.next_token

        def next_token(request: FakeRequest) -> tuple[int, float]:
            if "~1.1" in request.rid and len(request.out) == 5 and not died:
                died.append(request.rid)
                server._die()
            return real(request)

        server.scheduler.next_token = next_token  # type: ignore[method-assign]

    undisturbed = of_servers(InProcess(script=script), checkpoints["a"], tmp_path / "one", 2)
    got = of_servers(InProcess(on_start=dies, script=script), checkpoints["a"], tmp_path / "two", 2)
    assert len(died) == 1
    assert parts(got) == parts(undisturbed)
    for one, other in zip(got, undisturbed, strict=True):
        np.testing.assert_array_equal(one.logprobs, other.logprobs)

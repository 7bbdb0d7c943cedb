"""Publishes that race with servers that die, hang, lie and start again: whatever is served is what it says.

Real clients, a real fleet and real HTTP; the servers are fakes of this process, so that a start takes
milliseconds. A fake's token follows from the weights and the ids before it: each one that comes back is
compared with what the weights of its version give. Loops run on their own time: on a busy machine servers
would be broken again before they are back, and healthy ones be taken for hung.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.fleet import replicas as fleet_replicas
from rocstar.engine.fleet.fleet import Fleet, FleetLimits
from rocstar.engine.inference.base import Generation, InferenceError
from rocstar.engine.inference.sglang import replica as replica_module
from rocstar.engine.inference.sglang.replica import Replica, server_command
from rocstar.engine.inference.weights import DiskWeights
from rocstar.engine.scheduling.policies import make_policy
from tests.fakes.asking import ask
from tests.fakes.sglang.fake import FakeRequest, FakeScheduler
from tests.fakes.sglang.fake_model import VOCAB
from tests.fakes.sglang.fake_process import InProcess
from tests.fakes.sglang.fake_server import FakeServer
from tests.fakes.sglang.fake_weights import FakeWeights, Faults

from ..own_time import on_own_time

LAST_VERSION = 5
NUM_ASKERS = 4
NEW_TOKENS = 25


@pytest.fixture
def sources(checkpoints: dict[str, Path]) -> list[DiskWeights]:
    """Version v is sources[v % 2]: no two versions in a row are alike."""
    return [DiskWeights(checkpoints[name]) for name in "ab"]


SERVERS = InProcess()
"""Those of the running test."""


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    SERVERS.__init__(step_s=0.0005)  # type: ignore[misc]
    monkeypatch.setattr(replica_module, "FIRST_PAUSE_S", 0.005)
    monkeypatch.setattr(fleet_replicas, "FIRST_BACKOFF_S", 0.005)


def make_replica(sources: list[DiskWeights], name: str, folder: Path) -> Replica:
    return Replica(
        lambda port: server_command("python", sources[0].path, port, {}),
        model=sources[0],
        vocab_size=VOCAB,
        log_path=folder / f"{name}.log",
        ready_timeout_s=0.5,
        launcher=SERVERS,
        engine_options={
            "watch_every_s": 0.01,
            "hang_timeout_s": 0.2,
            "control_timeout_s": 0.3,
            "update_timeout_s": 0.5,
        },
    )


class Truth:
    """What the weights of each version say."""

    def __init__(self, sources: list[DiskWeights]) -> None:
        self._schedulers = [FakeScheduler(vocab_size=VOCAB, capacity=8, context_length=64) for _ in sources]
        for source, scheduler in zip(sources, self._schedulers, strict=True):
            FakeWeights(source.path, scheduler, Faults(), lambda: None, asyncio.Event())

    def check(self, ids: list[int], got: Generation) -> None:
        assert [k for start, end, _ in got.version_spans for k in range(start, end)] == [*range(len(got.ids))]
        for start, end, version in got.version_spans:
            for k in range(start, end):
                before = FakeRequest(
                    rid="",
                    ids=(*ids, *got.ids[:k]),
                    max_new_tokens=1,
                    temperature=0.7,
                    stop_ids=frozenset(),
                    ignore_eos=False,
                    done=lambda ended: None,
                )
                said = self._schedulers[version % 2].next_token(before)
                assert (got.ids[k], got.logprobs[k]) == said, f"token {k} is not version {version}'s"


@asynccontextmanager
async def flying(sources: list[DiskWeights], folder: Path) -> AsyncIterator[tuple[Fleet, list[Replica]]]:
    made = [make_replica(sources, name, folder) for name in ("one", "two")]
    limits = FleetLimits(
        failures=2,
        turn_timeout_s=5.0,
        publish_timeout_s=3.0,
        restart_timeout_s=5.0,
        load_period_s=0.05,
        max_attempts=1000,
        max_lost=1000,
    )
    async with AsyncExitStack() as stack:
        for replica in made:
            await stack.enter_async_context(replica)

        async def restart(index: int) -> Replica:
            return await made[index].restart()

        fleet = Fleet(made, policy=make_policy("round_robin"), limits=limits, restart=restart)
        yield await stack.enter_async_context(fleet), made


class Race:
    """Askers, a publisher and whoever breaks things, until the last version is published."""

    def __init__(self, fleet: Fleet, replicas: list[Replica], sources: list[DiskWeights], seed: int) -> None:
        self.fleet, self.replicas, self.sources = fleet, replicas, sources
        self.rng = random.Random(seed)
        self.truth = Truth(sources)
        self.taken = 0
        """The last version whose publish had returned."""
        self.over = False
        self.answers = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for k in range(NUM_ASKERS):
                tasks.create_task(self.asks(k))
            breaking = tasks.create_task(self.breaks())
            for version in range(1, LAST_VERSION + 1):
                await asyncio.sleep(self.rng.uniform(0.0, 0.06))
                await self.publishes(version)
            breaking.cancel()
            self.over = True

    async def asks(self, k: int) -> None:
        number = 0
        while not self.over or number < 2:
            floor, number = self.taken, number + 1
            ids = [5, 6, k, number % VOCAB]
            name = f"s{number}/t/{k}"
            got = await ask(self.fleet, ids, name, NEW_TOKENS)
            self.fleet.release(name)
            assert len(got.ids) == NEW_TOKENS
            self.truth.check(ids, got)
            assert min(v for _, _, v in got.version_spans) >= floor, "a version that was replaced is served"
            self.answers += 1

    async def publishes(self, version: int) -> None:
        """As train.servers does it: what went wrong with all is mended by a server that comes back."""
        source = self.sources[version % 2]
        try:
            await self.fleet.publish(version, source, keep=source)
            self.taken = version
        except InferenceError:
            assert await self.fleet.wait_up(30.0)
        finally:
            for replica in self.replicas:
                replica.keep(version, source)

    async def breaks(self) -> None:
        """Lies last for a moment; what else is broken is so until the server is started again."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.0, 0.05))
            name = self.rng.choice(sorted(SERVERS.latest))
            server = SERVERS.latest[name]
            match self.rng.choice(["kill", "kill", "hang", "mute", "error_500", "garbage", "forget"]):
                case "kill":
                    await server.kill()
                case "error_500":
                    server.faults.error_500 = self.rng.randint(1, 4)
                case ("hang" | "mute") as fault:
                    setattr(server.faults, fault, True)
                case fault:
                    setattr(server.faults, fault, True)
                    await asyncio.sleep(self.rng.uniform(0.0, 0.05))
                    setattr(server.faults, fault, False)


@pytest.mark.parametrize("seed", range(4))
@on_own_time
async def test_whatever_is_served_is_the_version_it_says(
    sources: list[DiskWeights], tmp_path: Path, seed: int
) -> None:
    async with flying(sources, tmp_path) as (fleet, replicas):
        race = Race(fleet, replicas, sources, seed)
        async with asyncio.timeout(600):
            await race.run()
            for server in SERVERS.latest.values():
                server.faults.error_500, server.faults.garbage, server.faults.forget = 0, False, False
            while fleet.replicas.num_up < 2:
                # A hung server is found with a request on it.
                await asyncio.gather(*(ask_anyway(replica) for replica in replicas))
        for k, replica in enumerate(replicas):
            got = await ask(replica, [9, k], f"end/{k}", NEW_TOKENS)
            race.truth.check([9, k], got)
            assert got.version_spans == ((0, NEW_TOKENS, LAST_VERSION),)
        assert race.answers > NUM_ASKERS


async def ask_anyway(replica: Replica) -> None:
    try:
        await ask(replica, [7], "poke", 2)
    except InferenceError:
        await asyncio.sleep(0.01)


@on_own_time
async def test_a_server_that_hangs_as_it_comes_back_is_started_again(
    sources: list[DiskWeights], tmp_path: Path, until: Any
) -> None:
    """It answers all control calls, and no request: the first that is made of it is the client's own."""
    async with make_replica(sources, "one", tmp_path) as replica:

        def hang(server: FakeServer) -> None:
            server.faults.hang = replica.restarts == 1

        SERVERS.on_start = hang
        await SERVERS.latest["one"].kill()
        async with asyncio.timeout(600):
            await until(lambda: replica.restarts)
            await replica.wait_ready(None)
        assert replica.restarts == 2
        Truth(sources).check([5], await ask(replica, [5], "s0/t/0", NEW_TOKENS))


@on_own_time
async def test_a_version_kept_while_a_server_starts_is_not_what_it_started_from(
    sources: list[DiskWeights], tmp_path: Path
) -> None:
    """The server is back with version 0 and about to be labelled when version 1 becomes the present one."""
    async with make_replica(sources, "one", tmp_path) as replica:
        check = replica._check_start

        async def keep_in_the_middle(source: DiskWeights) -> None:
            await check(source)
            replica.keep(1, sources[1])

        replica._check_start = keep_in_the_middle  # type: ignore[method-assign]
        await replica.restart()
        truth = Truth(sources)
        got = await ask(replica, [5], "s0/t/0", NEW_TOKENS)
        truth.check([5], got)
        assert (replica.engine.version, got.version_spans) == (0, ((0, NEW_TOKENS, 0),))
        await replica.publish(1, sources[1])
        got = await ask(replica, [5], "s0/t/0", NEW_TOKENS)
        truth.check([5], got)
        assert got.version_spans == ((0, NEW_TOKENS, 1),)

"""Weights that a learner and engines of one process share: who waits for whom at a change."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from torch import nn

from rocstar.train.publish.engine_publisher import EnginePublisher
from rocstar.train.serving.embedded import memory_measure


class Recorded:
    """An engine that writes down what is asked of it."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log, self.version = name, log, 0

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        self.log.append(f"hold {self.name}")
        yield
        self.log.append(f"free {self.name}")

    async def rest(self) -> None:
        self.log.append(f"rest {self.name}")

    def quiesce(self) -> None:
        self.log.append(f"quiet {self.name}")

    async def publish(self, version: int, weights: Any) -> None:
        self.log.append(f"publish {version}")
        self.version = version


async def test_engines_decode_until_a_weight_changes_and_after_its_version_serves() -> None:
    log: list[str] = []
    engines: Any = [Recorded("a", log), Recorded("b", log)]

    learner = SimpleNamespace(model=nn.Linear(1, 1), policy=SimpleNamespace(is_sharded=False))
    team: Any = SimpleNamespace(learner=learner)
    publisher = EnginePublisher(engines[0], engines, team)
    for version in (1, 2):
        log.clear()
        async with publisher.updating():
            resting = ["rest a", "rest b"]
            assert log == resting, "the gradient is made beside decoding"
            publisher.hold()
            stopped = [*resting, "hold a", "hold b", "quiet a", "quiet b"]
            assert log == stopped
            publisher.hold()  # a second update of the same batch
            assert log == stopped
            await publisher.publish(version)
        assert log == [*stopped, f"publish {version}", "free b", "free a"]


def test_lack_of_memory_is_counted_from_step_to_step() -> None:
    engine: Any = SimpleNamespace(rows_evicted=3, out_of_memory=1)
    measure = memory_measure([engine, engine])
    assert measure() == {"engine/rows_evicted": 6.0, "engine/out_of_memory": 2.0}
    engine.rows_evicted = 5
    assert measure() == {"engine/rows_evicted": 4.0, "engine/out_of_memory": 0.0}

"""The engine backend by `engine.kind` of a recipe, which only this module reads.

    kind ──> backend_of ──> EngineBackend ─┬─ check, plan      before anything is built
                                     ├─ open             a fixed model (eval, rollout)
                                     ├─ open_learning    a policy that learns, with its Publisher (train)
                                     └─ open_node        the engine on other nodes than rank 0's

A kind is a file of this folder, or a custom class: docs/guide/own-engine.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rocstar.engine.fleet.fleet import Fleet
from rocstar.engine.inference.base import RolloutEngine
from rocstar.engine.inference.weights import LiveWeights, WeightSource
from rocstar.train.learner import checkpoint
from rocstar.train.publish.publisher import Measure, Publisher
from rocstar.train.publish.rank_commands import weight_source
from rocstar.train.recipe import own_code
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from rocstar.train.learner.model_io import ModelSize
    from rocstar.train.learner.team import LearnerTeam
    from rocstar.train.serving.nodes import NodeAddress, OpenedNode, OpenNode, OpenService

BACKENDS: Mapping[str, str] = {
    "embedded": "rocstar.train.serving.embedded:Embedded",
    "sglang": "rocstar.train.serving.sglang:SGLang",
    "openai": "rocstar.train.serving.openai:OpenAI",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialPolicy:
    """The policy at the beginning of a run, or where it goes on."""

    made: Callable[[], PreTrainedModel]
    """Return `model`. It is loaded from disk on the first call: an engine without a model holds no copy."""
    tokenizer: PreTrainedTokenizerBase
    folder: Path | None
    """Where the same weights lie as a Hugging Face folder that stays while the run lasts; None = nowhere."""
    saved: Path | None
    """The checkpoint to go on from, which may be deleted later."""
    version: int
    """The version of its weights."""

    @property
    def model(self) -> PreTrainedModel:
        """The model as it was loaded or made; under FSDP a copy beside the learner's. Ask once."""
        return self.made()


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """A policy that learns, for the engine that is to serve it.

    Args:
        origin: the policy now.
        team: the learner.
        thread: the learner's own thread, in which all its work runs.
        run_dir: the folder of the run, for logs and weights.
        note: shows the user one line.
    """

    origin: InitialPolicy
    team: LearnerTeam
    thread: ThreadPoolExecutor
    run_dir: Path
    note: Callable[[str], None]

    async def weights(self) -> WeightSource:
        """The learner's present weights, whole. They may be those that it goes on to change: copy them."""
        return await weight_source(self.team) or LiveWeights(checkpoint.full_weights(self.team.learner.model))


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A running engine of a policy that learns."""

    engine: RolloutEngine
    publisher: Publisher
    """The publisher of new weights."""
    measure: Measure = dict
    begin: Callable[[str], None] = lambda stage: None
    """Told the stage whose trajectories come next: a scheduler learns lengths by stage."""
    others: list[NodeAddress] = field(default_factory=list)
    """Where the other nodes serve."""


def fleet_measure(fleet: Fleet) -> Measure:
    """Return the function of the fleet's metrics since its last call; names: train/record/metrics.py."""
    before = dataclasses.replace(fleet.replicas.counts)

    def measure() -> dict[str, float]:
        nonlocal before
        now = dataclasses.replace(fleet.replicas.counts)
        counts = {
            f"engine/{field.name}": float(getattr(now, field.name) - getattr(before, field.name))
            for field in dataclasses.fields(now)
        }
        before = now
        peaks = {f"engine/kv_peak/{k}": peak for k, peak in enumerate(fleet.replicas.take_kv_peaks())}
        return counts | {"engine/replicas_up": float(fleet.replicas.num_up)} | peaks

    return measure


def opened_fleet(fleet: Fleet, publisher: Publisher, others: Sequence[NodeAddress]) -> Opened:
    """The fleet of a training: measured, and informed of stages."""

    def begin(stage: str) -> None:
        fleet.stage = stage

    return Opened(engine=fleet, publisher=publisher, measure=fleet_measure(fleet), begin=begin, others=list(others))


class CopyPublisher:
    """Publishes to an engine with weights of its own: `engine.publish(version, source)` copies them.

    The engine goes on while the learner works, and no token is of weights that are half of one version.
    """

    def __init__(self, engine: RolloutEngine, learning: Learning) -> None:
        self._engine, self._learning = engine, learning

    @property
    def version(self) -> int:
        return self._engine.version

    @contextlib.asynccontextmanager
    async def updating(self) -> AsyncIterator[None]:
        yield

    async def publish(self, version: int) -> None:
        await self._engine.publish(version, await self._learning.weights())


class EngineBackend(Protocol):
    """One kind of engine. A custom class derives from this and implements at least `open`.

    It is made without arguments, and may be made more than once.
    """

    learns: bool = False
    """`open_learning` works: weights can be published to the engine, and it gives a log-prob per token."""
    sets_head_dtype: bool = False
    """Its logits are of the type that `model.head_dtype` names."""
    has_nodes: bool = False
    """`open_node` works: a run may have several nodes."""
    has_serving_nodes: bool = False
    """`open_serving_node` works: nodes may serve without learning."""
    reads_weights: bool = True
    """The weights of `model.path` are read; without them, its tokenizer alone is needed here."""

    def check(self, recipe: Recipe, *, elsewhere: bool) -> list[str]:
        """Check the requirements of this node before anything is built.

        Args:
            recipe: the recipe to run.
            elsewhere: it will run on other machines than this.

        Returns:
            Facts that cannot be checked here, a line each.

        Raises:
            ConfigError: a missing requirement, with the fix.
        """
        return []

    def plan(self, recipe: Recipe, size: ModelSize | str, *, ranks: int, ranks_per_node: int) -> list[str]:
        """Return lines of `--dry-run`: the engine's placement and memory.

        Args:
            recipe: the recipe to run.
            size: the model's size, or the reason why it is unknown.
            ranks: learner ranks on all nodes.
            ranks_per_node: learner ranks on each node.
        """
        return []

    def open(
        self, recipe: Recipe, path: str, thread: ThreadPoolExecutor
    ) -> AbstractAsyncContextManager[RolloutEngine]:
        """Open the engine on a fixed model.

        Args:
            recipe: the recipe to run.
            path: the model: a Hugging Face folder or a hub name.
            thread: the device thread; torch work of this process runs there.
        """

    def open_learning(self, recipe: Recipe, learning: Learning) -> AbstractAsyncContextManager[Opened]:
        """The engine of a policy that learns, at its present weights or at those of version 0."""
        raise NotImplementedError

    def open_node(
        self, recipe: Recipe, team: LearnerTeam, path: str, command: OpenNode, service: OpenService
    ) -> OpenedNode:
        """Open another node's engine and agent, on that node, at rank 0's command."""
        raise NotImplementedError

    def open_serving_node(self, recipe: Recipe, rank: int, command: OpenNode, service: OpenService) -> OpenedNode:
        """The same on a node that has no part of the learner; `rank` is of its one process."""
        raise NotImplementedError

    def groups_at_once(self, recipe: Recipe) -> int | None:
        """How many groups a node is granted at a time; None: as its engine's KV cache has room."""
        return None


def backend_of(recipe: Recipe) -> EngineBackend:
    """The backend of a recipe. ConfigError where a user's own cannot be found or is none."""
    kind = recipe.engine.kind
    made: EngineBackend = own_code.make(BACKENDS.get(kind, kind), {}, EngineBackend, field="engine.kind")
    return made


def check_backend(recipe: Recipe, *, learns: bool, nodes: int = 1, elsewhere: bool = False) -> list[str]:
    """Return the facts that cannot be checked before the engine runs. ConfigError for a missing feature.

    Args:
        recipe: the recipe to run.
        learns: the policy is trained, not only evaluated.
        nodes: machines of the run.
        elsewhere: it will run on other machines than this.
    """
    kind, backend = recipe.engine.kind, backend_of(recipe)
    if learns and not backend.learns:
        raise ConfigError(
            f"engine.kind = {kind!r} is for eval and rollout: a policy that learns needs an engine that "
            "takes new weights and gives a log-prob per token; set engine.kind = 'embedded' or 'sglang'"
        )
    if nodes > 1 and not backend.has_nodes:
        raise ConfigError(
            f"engine.kind = {kind!r} serves one node, and the run has {nodes}; start it on one, or set "
            "engine.kind = 'embedded' or 'sglang'"
        )
    unknown = backend.check(recipe, elsewhere=elsewhere)
    if learns and recipe.model.head_dtype != "model" and not backend.sets_head_dtype:
        unknown.append(
            f"model.head_dtype = {recipe.model.head_dtype!r}: whether the logits of engine.kind = {kind!r} "
            "have that type too"
        )
    return unknown

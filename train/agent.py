"""What rolls out: sandbox, tools, judge, engine, and how weights reach it. The one place to choose them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from transformers import PreTrainedModel

from rocstar.engine.chat import ChatFormat
from rocstar.engine.inference.base import Inference, Sampling
from rocstar.engine.inference.embedded import EmbeddedEngine
from rocstar.engine.rollout import Agent, RolloutLimits
from rocstar.engine.tools import JupyterToolBox, PythonToolBox, ToolBox
from rocstar.sandbox.flavours import FLAVOURS
from rocstar.sandbox.pool import AUTO, SandboxPool
from rocstar.sandbox.types import Limits, SessionSandbox
from rocstar.train.config import Recipe
from rocstar.train.reward import VERIFIER_FLAVOUR, Judge
from rocstar.train.team import LearnerTeam


@contextlib.asynccontextmanager
async def open_sandbox(recipe: Recipe) -> AsyncIterator[SandboxPool]:
    """The zygotes that tools and grading need, and room for the interpreter of every trajectory in flight."""
    tool, engine = recipe.tool, recipe.engine
    chosen = [name for name, flavour in FLAVOURS.items() if flavour.chosen]
    flavours = [*(chosen if tool.flavour == AUTO else [tool.flavour]), VERIFIER_FLAVOUR]
    pool = SandboxPool(
        flavours,
        max_live=engine.sandbox_children or None,
        max_sessions=engine.max_running if tool.kind == "jupyter" else 0,
        # A trajectory ends within its own time limit: no interpreter is taken from a living one.
        lease_s=engine.trajectory_timeout_s + 60.0,
    )
    async with pool:
        yield pool


def open_engine(recipe: Recipe, model: PreTrainedModel, thread: ThreadPoolExecutor) -> EmbeddedEngine:
    """An engine that decodes with `model` itself, in `thread`; it runs while it is entered."""
    return EmbeddedEngine(
        model,
        max_running=recipe.engine.max_running,
        thread=thread,
        lockstep=recipe.engine.deterministic,
    )


def tool_box(recipe: Recipe, sandbox: SessionSandbox) -> ToolBox:
    tool = recipe.tool
    limits = Limits(wall_s=tool.wall_s, cpu_s=max(1, int(tool.wall_s) + 1), memory_bytes=tool.memory_mb << 20)
    box = JupyterToolBox if tool.kind == "jupyter" else PythonToolBox
    return box(
        sandbox=sandbox,
        limits=limits,
        flavour=tool.flavour,
        style=tool.text,
        max_parallel_calls=tool.max_parallel_calls,
    )


def make_agent(
    recipe: Recipe,
    inference: Inference,
    chat: ChatFormat,
    sandbox: SessionSandbox,
    *,
    max_response_tokens: int = 1,
    max_turns: int = 1,
) -> Agent:
    """The agent of a recipe. The two limits are a stage's; without them somebody sets them later."""
    return Agent(
        inference=inference,
        chat=chat,
        tools=tool_box(recipe, sandbox),
        judge=Judge(sandbox),
        limits=RolloutLimits(
            max_response_tokens=max_response_tokens,
            max_turns=max_turns,
            max_tool_tokens=recipe.tool.max_output_tokens,
            timeout_s=recipe.engine.trajectory_timeout_s,
        ),
        sampling=Sampling(temperature=recipe.rl.temperature),
    )


@dataclass(frozen=True, slots=True)
class EnginePublisher:
    """Serves the learner's weights in this process; under FSDP the engine has an unsharded copy."""

    engine: EmbeddedEngine
    team: LearnerTeam

    @property
    def version(self) -> int:
        return self.engine.version

    def updating(self) -> contextlib.AbstractContextManager[None]:
        return self.engine.hold()

    async def publish(self, version: int) -> None:
        await self.engine.publish(version, await self.team.full_weights())

"""A trajectory's notebook, run along its turns, from which others go on by fork.

turns of a trajectory ──cells that ran──> one interpreter ──fork──> the interpreter of each continuation
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from dataclasses import dataclass, replace
from typing import cast

from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.seeds import stream_of
from rocstar.engine.tools.box import Dispatcher
from rocstar.engine.tools.interpreter import Interpreter
from rocstar.engine.tools.jupyter import JupyterTool
from rocstar.engine.tools.tool import ToolContext
from rocstar.engine.types import TrajectoryKey, Turn
from rocstar.sandbox.types import SandboxError, SessionSandbox


@dataclass(frozen=True, kw_only=True)
class BranchingTool(JupyterTool):
    """A notebook whose interpreters all go on from one, by fork."""

    snapshot: Interpreter
    branch_s: list[float]
    """How long each of them took."""

    async def open(self, context: ToolContext) -> Interpreter:
        started = time.perf_counter()
        branch = await self.snapshot.branch()
        self.branch_s.append(time.perf_counter() - started)
        return branch


class BranchedNotebook:
    """The interpreter of a trajectory, run along its turns. Where no tool is a notebook it does nothing.

    Invariant: behind `follow(turn)` it has the state that the trajectory had behind that turn, or says not.
    """

    def __init__(self, agent: Agent, key: TrajectoryKey) -> None:
        self._agent, self._box = agent, cast(Dispatcher, agent.tools)
        found = [tool for tool in self._box.tools if isinstance(tool, JupyterTool)]
        self._tool = found[0] if found else None
        self._interpreter: Interpreter | None = None
        if self._tool is not None:
            seed = stream_of(key, purpose="tools")
            sandbox = cast(SessionSandbox, self._box.sandbox)
            limits, flavour = self._tool.limits, self._tool.flavour
            self._interpreter = Interpreter(sandbox, flavour=flavour, limits=limits, seed=seed)

    async def follow(self, turn: Turn) -> bool:
        """Run the cells of a turn; False where one ends otherwise than it did, or not: the state is another.

        Of calls that the tool never had, as those beyond the limit of a turn, nothing ran.
        """
        if self._tool is None or self._interpreter is None:
            return True
        for call, result in zip(turn.calls, turn.results, strict=True):
            if call.name == self._tool.name and result.ran is not None:
                code = self._tool.read(call.arguments or {})["code"]
                deadline = asyncio.get_running_loop().time() + self._agent.limits.timeout_s
                try:
                    ran = await self._interpreter.run(code, deadline=deadline)
                except (SandboxError, TimeoutError):
                    return False
                if ran.result.status != result.status:
                    return False
        return True

    def branching(self, branch_s: list[float]) -> Agent:
        """The agent whose notebooks go on from here."""
        if self._tool is None or self._interpreter is None:
            return self._agent
        fields = {one.name: getattr(self._tool, one.name) for one in dataclasses.fields(JupyterTool)}
        tool = BranchingTool(**fields, snapshot=self._interpreter, branch_s=branch_s)
        tools = [tool if one is self._tool else one for one in self._box.tools]
        return replace(self._agent, tools=replace(self._box, tools=tools))

    async def aclose(self) -> None:
        if self._interpreter is not None:
            await self._interpreter.close()

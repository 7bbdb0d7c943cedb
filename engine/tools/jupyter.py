"""The notebook tool: calls are cells of one live interpreter per trajectory, over the sessions of a sandbox.

    run(cell) -> session? -- no --> open; of a branch, replay the parent's cells -> session.run -> ExecResult
                    | lost, for the program ended it ("died") -> open fresh, tell ---^
                    | lost by no fault of its cells -> open, replay its cells -------^

The trajectory waits for one cell at a time. A lost interpreter never becomes text or reward by itself: it is
replaced by a fresh one, which the result reports to the policy, or by a replay of its state, or it is a
SandboxError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from rocstar.engine.tools.python import texts_of
from rocstar.engine.tools.results import TextStyle, result_text
from rocstar.engine.tools.tool import Tool, ToolContext, ToolOutput
from rocstar.sandbox.types import ExecResult, Limits, SandboxError, Session, SessionLost, SessionSandbox, Status

JUPYTER_TOOL = "jupyter_code"
RESTARTED = "(the interpreter was restarted)"
"""The line above a cell's result when what earlier cells had defined is gone."""

PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "The python code to execute in a single cell"}},
    "required": ["code"],
}


@dataclass(frozen=True, kw_only=True)
class JupyterTool(Tool):
    """Cells over the sessions of a sandbox: run one after the other, in an interpreter that the first opens.

    Description and parameters are the original's, word for word.

    Attributes:
        limits: limits of one cell; the memory is the interpreter's.
        flavour: the packages imported before the interpreter starts.
        style: the text form of a cell's result.
    """

    limits: Limits
    flavour: str
    style: TextStyle

    name = JUPYTER_TOOL
    description = "Execute python code in a Jupyter notebook cell and return result"
    parameters = PARAMETERS
    parallel = False
    keeps_deadline = True

    def read(self, arguments: Mapping[str, Any]) -> Mapping[str, str]:
        return texts_of(arguments, "code")

    async def open(self, context: ToolContext) -> Interpreter:
        sandbox = cast("SessionSandbox", context.sandbox)
        return Interpreter(sandbox, flavour=self.flavour, limits=self.limits, seed=context.seed)

    async def call(self, arguments: Mapping[str, str], context: ToolContext) -> ToolOutput:
        interpreter: Interpreter = context.session
        ran = await interpreter.run(arguments["code"], deadline=context.deadline, seed=context.seed)
        text = result_text(ran.result, self.style)
        text = f"{RESTARTED}\n{text}" if ran.restarted else text
        return ToolOutput(text, ran.result.status, restarted=ran.restarted, replayed=ran.replayed)

    async def branch(self, session: Interpreter) -> Interpreter:
        return session.branch()

    async def close(self, session: Interpreter) -> None:
        await session.close()


CLOSE_TIMEOUT_S = 10.0
RESEED = "__import__('sys').modules['rocstar.sandbox.child.cell'].reseed_branch({})"
"""A cell that leaves no name behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A cell's result, and whether the interpreter was restarted or replayed before (see
    types.ToolResult)."""

    result: ExecResult
    restarted: bool
    replayed: bool


class Interpreter:
    """One interpreter at a time, opened at the first cell. All of them have the same seed, until the first cell of a
    branch gives it another one.

    Invariant: a cell meets the state that the results of `_cells`, in their order, left in a fresh
    interpreter. For cells that ask neither clock nor machine a replay gives that state exactly; for others it
    may differ in what their results do not show. A replayed cell that ends with another status than it had
    ends the replay. `run` and `close` must not overlap.
    """

    def __init__(self, sandbox: SessionSandbox, *, flavour: str, limits: Limits, seed: int) -> None:
        self._sandbox = sandbox
        self._flavour, self._limits, self._seed = flavour, limits, seed
        self._next_seed = seed
        """The seed of the next interpreter without earlier cells."""
        self._session: Session | None = None
        self._cells: list[tuple[str, Status]] = []
        """The code of each cell, with the status of its result."""
        self._shares_seed = False
        """It is a branch, and its random state is still its parent's."""

    async def run(self, code: str, *, deadline: float | None, seed: int | None = None) -> Ran:
        """Run one cell. At most one restart and one replay come before it.

        seed: of a branch's random modules, at its first cell; None: they go on as its parent's.

        Raises:
            SandboxError: of kind session_lost when the state could not be built again, else as it came.
            TimeoutError: the deadline passed while an interpreter was opened.
        """
        restarted = replayed = was_restarted = False
        if self._shares_seed and seed is not None:
            self._shares_seed, self._next_seed = False, seed
            if self._cells:
                was_restarted = (await self.run(RESEED.format(seed), deadline=deadline)).restarted
            else:
                self._seed = seed
        session = self._session
        if session is None:
            session = await (self._replay("is a branch", deadline) if self._cells else self._open(deadline))
        while True:
            try:
                result = await session.run(code, deadline=deadline)
            except SessionLost as lost:
                # Where no cell has run, no cell can have ended it.
                if lost.reason == "died" and self._cells and not restarted:
                    restarted = True
                    self._cells.clear()
                    self._seed = self._next_seed
                    session = await self._open(deadline)
                elif (lost.reason != "died" or not self._cells) and not replayed:
                    replayed = True
                    session = await self._replay(f"was lost ({lost.reason})", deadline)
                else:
                    raise _gave_up(f"was lost ({lost.reason})", "it was lost again") from None
            else:
                self._cells.append((code, result.status))
                return Ran(result=result, restarted=restarted or was_restarted, replayed=replayed)

    def branch(self) -> Interpreter:
        """Return a copy of this interpreter, which runs its cells again at its first own cell.

        A fork of its process would be faster and share its files (sandbox/types.py, Session.branch).
        """
        other = Interpreter(self._sandbox, flavour=self._flavour, limits=self._limits, seed=self._seed)
        other._cells, other._next_seed, other._shares_seed = list(self._cells), self._next_seed, True
        return other

    async def close(self) -> None:
        """Release the interpreter; if the sandbox cannot be reached, its lease ends it."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(SandboxError, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await session.close()

    async def _open(self, deadline: float | None) -> Session:
        async with asyncio.timeout_at(deadline):
            self._session = await self._sandbox.open_session(
                flavour=self._flavour, limits=self._limits, seed=self._seed
            )
        return self._session

    async def _replay(self, why: str, deadline: float | None) -> Session:
        """A new session in which every cell so far has run again, each as it ended before."""
        try:
            session = await self._open(deadline)
            for number, (code, earlier) in enumerate(self._cells, 1):
                status = (await session.run(code, deadline=deadline)).status
                if status is not earlier:
                    ended = f"cell {number} ended with {status}, before it was {earlier}"
                    raise SandboxError(ended, kind="session_lost", retryable=True)
        except (SandboxError, TimeoutError) as failure:
            raise _gave_up(why, str(failure) or "the deadline passed") from None
        return session


def _gave_up(what: str, why: str) -> SandboxError:
    message = f"the interpreter {what} and its cells could not be run again: {why}"
    return SandboxError(message, kind="session_lost", retryable=True)

"""Whether a sandbox runs a program now, for the probes of every server."""

import asyncio

from rocstar.sandbox.types import BatchSandbox, ExecRequest, SandboxError, Status

READY_S = 10.0
READY_KEPT_S = 1.0
READINESS = " readiness"
"""The owner of that program, under a name that no token can have: it waits for no owner's calls."""


class Readiness:
    """Invariant: at most one program a second is run, however many ask."""

    def __init__(self, sandbox: BatchSandbox, flavour: str) -> None:
        self._sandbox = sandbox
        self._flavour = flavour
        self._lock = asyncio.Lock()
        self._looked_s = float("-inf")
        self._problem = ""

    async def problem(self) -> str:
        """What keeps the sandbox from running a program; empty if nothing does."""
        async with self._lock:
            now_s = asyncio.get_running_loop().time()
            if now_s - self._looked_s > READY_KEPT_S:
                self._problem = await self._probe(now_s + READY_S)
                self._looked_s = asyncio.get_running_loop().time()
            return self._problem

    async def _probe(self, deadline: float) -> str:
        request = ExecRequest(code="print(1)", flavour=self._flavour, owner=READINESS)
        try:
            result = await self._sandbox.run(request, deadline=deadline)
        except SandboxError as error:
            return f"{error.kind}: {error}"
        if result.status is Status.OK and result.stdout == "1\n":
            return ""
        return f"print(1) gave {result.status}"

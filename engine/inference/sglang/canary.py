"""Do the served weights compute what the learner's compute? For servers whose checksums cannot be foretold.

    learner: a short prompt continued greedily: ids, log-probs ──┐
    server:  the same prompt, greedily ──────────────────────────┴─ further apart than the tolerance: an error

A GPU's checksums say that something changed, not into what. This says that it is not garbage; what is smaller
than the tolerance it does not see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rocstar.engine.inference.base import InferenceError, Sampling
from rocstar.engine.inference.sglang.engine import SGLangEngine

Continuation = tuple[list[int], list[float]]
"""The likeliest next ids behind a prompt, one after the other, and their log-probs at T = 1."""
NUM_TOKENS = 4
KEPT_VERSIONS = 4


class Canary:
    """Invariant: servers that come to a version late are compared with what the learner said when its weights
    were those of the version.

    Args:
        prompt: ids of the model; the learner and the servers continue them by NUM_TOKENS.
        tolerance: nats by which the log-prob of any token may differ.
        timeout_s: for a server to answer.
    """

    def __init__(self, *, prompt: Sequence[int], tolerance: float, timeout_s: float = 300.0) -> None:
        self.prompt, self._tolerance = list(prompt), tolerance
        self._timeout_s = timeout_s
        self._known: dict[int, Continuation] = {}

    def expect(self, version: int, reference: Continuation) -> None:
        """Servers of `version` are to continue the prompt as the learner did, which is `reference`."""
        self._known[version] = reference
        for old in sorted(self._known)[:-KEPT_VERSIONS]:
            del self._known[old]

    async def check(self, engine: SGLangEngine) -> None:
        """InferenceError(wrong_weights) unless the server says what the learner said of its version."""
        known = self._known.get(engine.version)
        if known is None:  # it was started from this version's files, before anything was published
            return
        ids, logprobs = await self._ask(engine)
        for k in range(NUM_TOKENS):
            if not abs(logprobs[k] - known[1][k]) <= self._tolerance:
                detail = (
                    f"token {k} of the canary has log-prob {logprobs[k]:.4f} where the learner's version "
                    f"{engine.version} has {known[1][k]:.4f}: more than {self._tolerance} apart"
                )
                raise InferenceError("wrong_weights", detail, retryable=True)
            if ids[k] != known[0][k]:  # as likely, or nearly; what follows is another text
                return

    async def _ask(self, engine: SGLangEngine) -> tuple[Sequence[int], Sequence[float]]:
        try:
            found = await engine.generate(
                self.prompt,
                max_new_tokens=NUM_TOKENS,
                stop_ids=frozenset(),
                sampling=Sampling(temperature=0.0),
                seed=0,
                request_id=f"rocstar-canary/{engine.version}",
                deadline=asyncio.get_running_loop().time() + self._timeout_s,
            )
        except TimeoutError:
            detail = f"no canary within {self._timeout_s} s"
            raise InferenceError("replica_hung", detail, retryable=True) from None
        if len(found.ids) < NUM_TOKENS or {v for _, _, v in found.version_spans} != {engine.version}:
            raise InferenceError("wrong_weights", "the canary was cut short", retryable=True)
        return found.ids, found.logprobs

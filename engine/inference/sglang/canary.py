"""Do the served weights compute what the learner's compute? For servers whose checksums cannot be foretold.

    learner: a short prompt continued greedily: ids, log-probs ──┐
    server:  the same prompt, greedily ──────────────────────────┴─ further apart than the tolerance: an error

A GPU's checksums say that something changed, not into what. This says that it is not garbage; what is smaller
than the tolerance it does not see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from rocstar.engine.inference.base import InferenceError, Sampling
from rocstar.engine.inference.sglang.engine import SGLangEngine

Song = tuple[list[int], list[float]]
"""Token ids and their log-probs at T = 1."""
Sing = Callable[[list[int], int], Awaitable[Song]]
"""(prompt, n) -> the learner's n likeliest next ids, one after the other, and their log-probs at T = 1."""
NUM_TOKENS = 4
KEPT_VERSIONS = 4


class Canary:
    """Invariant: the learner is asked once per version, while its weights are those of the version. Servers
    that come to the version later are compared with what it said then.

    prompt: ids of the model. tolerance: nats, of any token.
    """

    def __init__(
        self, sing: Sing, *, prompt: Sequence[int], tolerance: float, timeout_s: float = 300.0
    ) -> None:
        self._sing, self._prompt, self._tolerance = sing, list(prompt), tolerance
        self._timeout_s = timeout_s
        self._known: dict[int, Song] = {}

    async def learn(self, version: int) -> None:
        """Ask the learner, whose present weights are to be served as `version`."""
        self.hear(version, await self._sing(self._prompt, NUM_TOKENS))

    def song(self, version: int) -> Song | None:
        """What the learner said of `version`, if it was asked and that was not long ago."""
        return self._known.get(version)

    def hear(self, version: int, song: Song) -> None:
        """What the learner said of `version` elsewhere."""
        self._known[version] = song
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
                self._prompt,
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

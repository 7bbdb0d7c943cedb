"""Compare served weights with the learner's by a prompt, for servers whose checksums cannot be predicted.

    learner: a short prompt continued greedily: ids, log-probs ──┐
    server:  the same prompt, greedily ──────────────────────────┴─ further apart than the tolerance: an error

A GPU's checksums show that weights changed, not to which values. The canary shows that they are not garbage;
it does not detect differences below the tolerance.
"""

import asyncio
from collections.abc import Sequence

from rocstar.engine.inference.base import InferenceError, Sampling
from rocstar.engine.inference.sglang.engine import SGLangEngine

Continuation = tuple[list[int], list[float]]
"""The likeliest next ids behind a prompt, one after the other, and their log-probs at T = 1."""
NUM_TOKENS = 4
KEPT_VERSIONS = 4


class Canary:
    """Invariant: servers that load a version late are compared with the learner's answer at that version.

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
        """Raise InferenceError(wrong_weights) unless the server's answer equals the learner's for its
        version."""
        known = self._known.get(engine.version)
        if known is None:  # it was started from this version's files, before anything was published
            return
        try:
            answer = await engine.generate(
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
        if len(answer.ids) < NUM_TOKENS or {v for _, _, v in answer.version_spans} != {engine.version}:
            raise InferenceError("wrong_weights", "the canary was cut short", retryable=True)
        for k, logprob in enumerate(answer.logprobs[:NUM_TOKENS]):
            if not abs(logprob - known[1][k]) <= self._tolerance:
                detail = (
                    f"token {k} of the canary has log-prob {logprob:.4f} where the learner's version "
                    f"{engine.version} has {known[1][k]:.4f}: more than {self._tolerance} apart"
                )
                raise InferenceError("wrong_weights", detail, retryable=True)
            if answer.ids[k] != known[0][k]:  # almost equal log-probs; the continuations differ from here on
                return

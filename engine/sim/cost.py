"""The cost of one forward of a replica, in seconds.

    decode   a + b * requests + c * context                (context: KV tokens that the step reads)
    prefill  a + d * new + e * attended                    (attended: query-key pairs, see `pairs`)
    mixed    a + b * requests + c * context + d * new + e * attended

With at most `draft_rows` requests that decode, a step gives `draft_tokens` tokens per request on average: the accepted
drafts and one more. Its cost counts per token then.

Without `mixed` a prefill is a forward of its own and decoding waits for it (SGLang's default); with it the
running requests ride along and each gets a token (chunked prefill piggybacked; our embedded engine).
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Seconds per forward, request, context token, new token, query-key pair: the first > 0, all >= 0."""

    forward_s: float
    request_s: float
    context_token_s: float
    prefill_token_s: float
    prefill_pair_s: float
    mixed: bool = False
    draft_tokens: float = 1.0
    draft_rows: int = 0

    def __post_init__(self) -> None:
        if self.draft_tokens < 1 or self.draft_rows < 0:
            raise ValueError(f"a step gives at least one token, and draft_rows is at least 0: {self}")
        terms = (self.request_s, self.context_token_s, self.prefill_token_s, self.prefill_pair_s)
        if not self.forward_s > 0 or not all(term >= 0 for term in terms):
            raise ValueError(f"a forward must cost something, and nothing less than 0: {self}")

    def decode_s(self, steps: int, requests: int, context: int) -> float:
        """`steps` decode steps of a batch that reads `context` tokens in the first one.

        Each step adds one token per request, so step k reads context + k * requests: the sum is a quadratic.
        """
        first = self.forward_s + self.request_s * requests + self.context_token_s * context
        seconds = steps * first + self.context_token_s * requests * (steps * (steps - 1) / 2)
        return seconds / self.tokens_per_step(requests)

    def steps_within(self, seconds: float, requests: int, context: int, limit: int) -> int:
        """The fewest steps, 1 to `limit`, that take at least `seconds`: the boundary that sees an event."""
        tokens = self.tokens_per_step(requests)
        slope = self.context_token_s * requests / 2 / tokens
        first = (self.forward_s + self.request_s * requests + self.context_token_s * context) / tokens
        linear = first - slope
        if slope:
            guess = (math.sqrt(linear * linear + 4 * slope * max(seconds, 0.0)) - linear) / (2 * slope)
        else:
            guess = seconds / first
        steps = min(max(1, math.ceil(guess)), limit)
        while steps > 1 and self.decode_s(steps - 1, requests, context) >= seconds:
            steps -= 1
        while steps < limit and self.decode_s(steps, requests, context) < seconds:
            steps += 1
        return steps

    def tokens_per_step(self, requests: int) -> float:
        return self.draft_tokens if requests <= self.draft_rows else 1.0

    def prefill_s(self, new: int, attended: float) -> float:
        """One forward that computes `new` tokens, without requests that ride along."""
        return self.forward_s + self.prefill_token_s * new + self.prefill_pair_s * attended

    def in_context_tokens(self) -> dict[str, float]:
        """Return tunables of `predictive`: the cost of a forward, a request and a prefilled token, in context
        tokens that are read in the same time. Rounded to two digits, the last to one, the precision of
        measured costs. A context token without cost counts as a billionth of a forward."""
        token_s = max(self.context_token_s, 1e-9 * self.forward_s)
        return {
            "forward_tokens": float(f"{self.forward_s / token_s:.2g}"),
            "request_tokens": float(f"{self.request_s / token_s:.2g}"),
            "prefill_tokens": float(f"{self.prefill_token_s / token_s:.1g}"),
        }


def pairs(cached: int, new: int) -> float:
    """Query-key pairs of `new` tokens behind `cached` ones; over chunks of them they add up."""
    return new * cached + new * new / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaModel:
    """One inference replica. The engine's own rules are those of SGLang 0.5.23 with its default settings.

    Admission: first come first served, of those that were granted; a request enters when its uncached tokens
    and min(its limit, `clip_tokens`) fit into free and evictable KV, less the same reserve of those that run
    times the new-token ratio. The ratio starts at 0.7 * `conservativeness`, falls to 0.14 of that within
    600 steps, and is estimated anew at each retraction.
    """

    kv_tokens: int
    cost: CostModel
    max_running: int = 512
    chunk_tokens: int = 8192
    conservativeness: float = 1.0
    clip_tokens: int = 4096
    share_prompts: bool = True
    """Siblings on one replica share their prompt's KV."""
    keep_prompts: bool = True
    """It outlives them until the room is needed (a radix tree; an engine of slots copies it instead)."""

    def __post_init__(self) -> None:
        if min(self.kv_tokens, self.max_running, self.chunk_tokens) < 1:
            raise ValueError(f"pool, batch and chunk must be at least 1: {self}")
        if self.conservativeness < 0 or self.clip_tokens < 0:
            raise ValueError(f"conservativeness and clip must not be negative: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal replicas in nodes; a node runs the tool calls of its trajectories on `tool_workers` workers."""

    model: ReplicaModel
    replicas: int = 64
    replicas_per_node: int = 8
    tool_workers: int = 1024

    def __post_init__(self) -> None:
        if min(self.replicas, self.replicas_per_node, self.tool_workers) < 1:
            raise ValueError(f"at least one replica, per node too, and one tool worker: {self}")


MI300X_14B = CostModel(
    forward_s=8.5e-3, request_s=20e-6, context_token_s=44e-9, prefill_token_s=50e-6, prefill_pair_s=0.5e-9
)
"""Qwen3-14B in bf16 on one MI300X, from arithmetic, not measured: 29.5 GB of weights at 4.2 TB/s, 1.5 ms of
launch; 160 KiB of KV per token at 3.7 TB/s; 29.6 GFLOP per prefill token at 0.6 PFLOP/s; 4 * 40 layers * 5120
FLOP per query-key pair at 1.6 PFLOP/s (optimistic: it is small); 20 us per row for sampling and its GEMMs."""

MI300X_14B_KV_TOKENS = 800_000
"""192 GB * 0.85 less 29.5 GB of weights, at 160 KiB per token, rounded down."""

"""The bars of the proof: one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Results = Mapping[str, Mapping[str, Any]]
"""The fields of each part by its name, as in proof.json."""
Figure = Callable[[Results], float | None]

LOGPROB_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1}
"""Tolerance of a log-prob against a plain forward. Half-precision logits of two orders of summation differ by
0.05."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A figure and its limits.

    Args:
        name: describes the figure.
        figure: taken from the results; None where it was not measured.
        at_least, at_most: None for no limit.
        is_correctness: a miss is a wrong result, and the proof exits with 1; else it is recorded.
    """

    name: str
    figure: Figure
    at_least: float | None = None
    at_most: float | None = None
    is_correctness: bool = False

    def judged(self, results: Results, *, toy: bool) -> dict[str, Any]:
        """The bar as in proof.json; `met` is None without a figure, and in a toy proof for bars
        of speed and memory."""
        figure = self.figure(results)
        met = None
        if figure is not None and (self.is_correctness or not toy):
            low = self.at_least is None or figure >= self.at_least
            met = low and (self.at_most is None or figure <= self.at_most)
        return {
            "name": self.name,
            "figure": figure,
            "at_least": self.at_least,
            "at_most": self.at_most,
            "met": met,
            "is_correctness": self.is_correctness,
        }


def of(part: str, name: str) -> Figure:
    """One field of one part."""
    return lambda results: results[part][name]


def number_of(part: str, name: str) -> Figure:
    """The length of a list."""
    return lambda results: None if results[part][name] is None else float(len(results[part][name]))


def best_peer_over_ours(results: Results) -> float | None:
    """Time of the fastest peer of the head over rocstar's."""
    times = [fields["ms"] for name, fields in results.items() if name.startswith("peer ") and fields["ms"]]
    ours = results["head"]["ms"]
    return min(times) / ours if times and ours else None


def ours_over_best_side(results: Results) -> float | None:
    """Tokens per second of rocstar over the fastest setting of transformers."""
    rates = {name: fields["tokens_per_s"] for name, fields in results.items() if name.startswith("decode ")}
    ours = rates.pop("decode rocstar")
    peers = [rate for rate in rates.values() if rate]
    return ours / max(peers) if ours and peers else None


def logprob_error(results: Results) -> float | None:
    fields = results["decode rocstar"]
    error = fields["logprob_error"]
    return None if error is None else error / LOGPROB_TOLERANCE[fields["dtype"]]


def steps_done(results: Results) -> float | None:
    """Recorded over asked RL steps of the loop."""
    fields = results["loop"]
    return None if fields["steps"] is None else fields["steps"] / fields["asked_steps"]


def memory_ratio(size: str, pick: Callable[..., float]) -> Figure:
    def figure(results: Results) -> float | None:
        ratios: list[float] | None = results[f"learner {size}"]["measured_over_rehearsed"]
        return pick(ratios) if ratios else None

    return figure


BARS = (
    Bar(
        name="row kernels: cases off",
        figure=number_of("parity", "row_failures"), at_most=0, is_correctness=True,
    ),
    Bar(
        name="head: gradient error over its tolerance",
        figure=of("parity", "head_error_over_tolerance"), at_most=1, is_correctness=True,
    ),
    Bar(
        name="runs that differ in a bit",
        figure=of("parity", "differing_runs"), at_most=0, is_correctness=True,
    ),
    Bar(
        name="updates in float32: device from CPU, over the change",
        figure=of("updates", "float32_weights_apart"), at_most=0.02, is_correctness=True,
    ),
    Bar(
        name="updates in bfloat16: gradient norms of device and CPU, relative difference",
        figure=of("updates", "bfloat16_gradient_norms_apart"), at_most=0.02, is_correctness=True,
    ),
    Bar(
        name="quickstart: RL steps done over asked",
        figure=steps_done, at_least=1, is_correctness=True,
    ),
    Bar(
        name="decode: log-prob error over its tolerance",
        figure=logprob_error, at_most=1, is_correctness=True,
    ),
    Bar(
        name="head 14B: share of the product rate",
        figure=of("head", "share_of_product_rate"), at_least=0.85,
    ),
    Bar(name="head 14B: time of the best peer over rocstar's", figure=best_peer_over_ours, at_least=1.0),
    Bar(name="learner 4B: share of the bfloat16 rate", figure=of("learner 4B", "best_mfu"), at_least=0.35),
    *(
        Bar(
            name=f"learner {size}: {which} measured over rehearsed memory",
            figure=memory_ratio(size, pick), at_least=0.9, at_most=1.1,
        )
        for size in ("0.6B", "1.7B", "4B")
        for which, pick in (("least", min), ("most", max))
    ),
    Bar(
        name="decode 0.6B: tokens per second over transformers' best setting",
        figure=ours_over_best_side, at_least=1.0,
    ),
    Bar(name="tests with the device hidden: failed", figure=of("tests cpu", "failed"), at_most=0),
    Bar(name="tests on the device: failed", figure=of("tests gpu", "failed"), at_most=0),
)  # fmt: skip

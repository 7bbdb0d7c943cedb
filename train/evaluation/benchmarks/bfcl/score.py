"""BFCL v3's composed scores, from the means of its categories. Pure.

    non_live   = mean(mean(simple, java, javascript), multiple, parallel, parallel_multiple, irrelevance)
    live       = mean over its categories, weighted by their numbers of questions
    multi_turn = mean(base, miss_func, miss_param, long_context)
    overall    = mean(non_live, live, multi_turn)

Source: `eval_runner_helper.py` of bfcl-eval 2025.8.6.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from rocstar.train.evaluation.benchmarks.bfcl.entries import SIZES

NO_CALL_ATTEMPTED = "no_call_attempted"
"""The column of a question that no function answers: it was finished without any call, decodable or not."""
IRRELEVANCE = ["irrelevance", "live_irrelevance"]
LIVE = [category for category in SIZES if category.startswith("live_")]
MULTI_TURN = [category for category in SIZES if category.startswith("multi_turn_")]


def overall(means: Mapping[str, float]) -> dict[str, float]:
    """The composed scores whose categories are all there; upstream counts a missing one as 0.

    Where `means` has the second column of both irrelevance categories too (judge.measures), the scores come a
    second time with these in the place of the published rule's, under names that end in NO_CALL_ATTEMPTED.
    """
    composed = _composed(means)
    strict = {
        c: means[f"{c}/{NO_CALL_ATTEMPTED}"] for c in IRRELEVANCE if f"{c}/{NO_CALL_ATTEMPTED}" in means
    }
    if len(strict) == len(IRRELEVANCE):
        again = _composed({**means, **strict})
        composed |= {
            f"{name}/{NO_CALL_ATTEMPTED}": value for name, value in again.items() if name != "multi_turn"
        }
    return composed


def _composed(means: Mapping[str, float]) -> dict[str, float]:
    composed: dict[str, float] = {}
    simple = ["simple", "java", "javascript"]
    others = ["multiple", "parallel", "parallel_multiple", "irrelevance"]
    if means.keys() >= {*simple, *others}:
        composed["non_live"] = fmean([fmean(means[c] for c in simple), *(means[c] for c in others)])
    if means.keys() >= set(LIVE):
        composed["live"] = sum(means[c] * SIZES[c] for c in LIVE) / sum(SIZES[c] for c in LIVE)
    if means.keys() >= set(MULTI_TURN):
        composed["multi_turn"] = fmean(means[c] for c in MULTI_TURN)
    if len(composed) == 3:
        composed["overall"] = fmean(composed.values())
    return composed

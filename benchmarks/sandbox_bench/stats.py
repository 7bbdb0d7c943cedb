"""Percentiles, slopes and arrival times: the arithmetic of the benchmarks, without a clock in it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from rocstar.sandbox.bench import percentile


def latency_ms(seconds: Sequence[float]) -> dict[str, float]:
    """p50, p95, p99 and the largest, in milliseconds."""
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {name: round(1e3 * percentile(seconds, share), 3) for name, share in shares.items()}


def median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Least-squares slope of y over x."""
    if len(xs) != len(ys) or len(xs) < 2:
        raise ValueError(f"{len(xs)} and {len(ys)} values: a line needs two points or more")
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - x_mean) ** 2 for x in xs)
    if not spread:
        raise ValueError("all x are equal: there is no slope")
    return sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / spread


def poisson_arrivals(rate_per_s: float, count: int, seed: int) -> list[float]:
    """`count` arrival times in seconds from 0: independent exponential gaps with mean 1 / rate."""
    rng = random.Random(seed)
    at, times = 0.0, []
    for _ in range(count):
        at += rng.expovariate(rate_per_s)
        times.append(at)
    return times


def cores_needed(cpu_s_per_call: float, calls: int = 45_000, within_s: float = 0.3) -> float:
    """Cores that a perfectly parallel service would need to finish `calls` within `within_s`."""
    return cpu_s_per_call * calls / within_s

"""Randomness as a function of names (contract 4), so that order of execution does not matter.

A trajectory's key gives a 64-bit stream; the noise of a token is a hash of (stream, position).
Source of the mixer: SplitMix64 (Steele, Lea, Flood 2014), used as a counter generator.
"""

import hashlib

import numpy as np
import numpy.typing as npt

from rocstar.engine.types import TrajectoryKey

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def stream_of(key: TrajectoryKey, *, purpose: str = "tokens") -> int:
    """A 63-bit seed from every part of the key; equal keys give equal streams on every machine."""
    name = f"{purpose}|{key.seed}|{key.step}|{key.task_id}|{key.sibling}" + (f"~{key.branch}" if key.branch else "")
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 1


def uniforms(streams: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """One uniform number in [0, 1) per (stream, position) pair."""
    with np.errstate(over="ignore"):
        x = _mix(_mix(streams) + _GAMMA * (positions + np.uint64(1)))
    return (x >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))

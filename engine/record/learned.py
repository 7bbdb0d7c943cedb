"""The learner's token statistics of a step's trajectories, as files beside their frames.

    step_000001.r000.learned    <8s magic> <u32 bytes> about (JSON), a PLACE for each trajectory, then their
                                columns; a file for each rank of the learner; appears complete

They are known after the update, when the step's frames are written already, and each rank knows its own
trajectories: so each rank writes a separate file, without communication. The columns of a trajectory, each
compressed by itself (compression.py):

    gaps        float16 of 8 bits: learner at the batch start minus rollout, in log-probs
    entropies   a byte, the root of the share of MAX_ENTROPY: within 2% at half a nat, 5% at a tenth
    log_ratios  float16 of 8 bits: learner at the token's update minus batch start; and a byte each of codes,
                the bounds that clipped tokens; omitted if every ratio is 1, as in a first update

No update uses these values, so they are stored with low precision: a gap and a log-ratio have a relative
error of at most half a percent, or an absolute one of 3e-7.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import zstandard

from rocstar.engine.record.compression import (
    MAX_NUMBERS,
    compress,
    compress_shuffled,
    decompress,
    decompress_shuffled,
    pack_parts,
    unpack_parts,
)
from rocstar.engine.record.files import LEARNED, learned_files, whole_file
from rocstar.engine.record.json_record import RecordError
from rocstar.engine.record.step_file import STEP_HEAD, read_head, task_number

VERSION: Final = 1
MAGIC: Final = b"rcsLrnd\n"
MAX_ENTROPY: Final = 16.0
"""Nats; that of a vocabulary of nine million words."""
MAX_PARTS: Final = 6
_UNKNOWN: Final = 255
_DROPPED_BITS: Final = 3

PLACE: Final = np.dtype([
    ("name", "<u8"), ("offset", "<u8"), ("size", "<u4"), ("tokens", "<u4"), ("sum", "<u4"),
])  # fmt: skip
"""One trajectory: a number of its name, where its columns lie, of how many tokens, and their CRC-32."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LearnedTokens:
    """One trajectory's tokens with loss, in order, as the learner saw them; all columns have one length."""

    gaps: Floats
    """Log-prob of the learner at the batch start minus that of the rollout."""
    entropies: Floats
    """Nats, at the token's update; NaN where there was none."""
    log_ratios: Floats
    """Log-prob at the token's update minus that at the batch start."""
    codes: npt.NDArray[np.uint8]
    """Which bound of the clipped ratio held the token: 0 none, 1 the lower, 2 the upper."""

    def __len__(self) -> int:
        return len(self.gaps)


def sequence_name(name: str, number: int) -> str:
    """The name of a trajectory's sequence for the learner: the trajectory's name, and of later ones a number."""
    return f"{name}#{number}" if number else name


def learned_path(folder: Path, step: int, rank: int) -> Path:
    """The path of a rank's token statistics of a step."""
    return folder / f"step_{step:06d}.r{rank:03d}{LEARNED}"


def write_learned(folder: Path, learned: Mapping[str, LearnedTokens], *, step: int, rank: int, ranks: int) -> Path:
    """Write a rank's token statistics by trajectory name; the file appears when it is complete.

    Raises OSError if the disk is full.
    """
    places = np.zeros(len(learned), PLACE)
    bodies = list(_encoded(list(learned.values())))
    about = json.dumps({"v": VERSION, "step": step, "ranks": ranks, "places": len(places)}).encode("ascii")
    at = STEP_HEAD.size + len(about) + places.nbytes
    for k, (name, tokens) in enumerate(learned.items()):
        places[k] = (task_number(name), at, len(bodies[k]), len(tokens), zlib.crc32(bodies[k]))
        at += len(bodies[k])
    path = learned_path(folder, step, rank)
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(path, is_synced=False) as file:
        file.write(STEP_HEAD.pack(MAGIC, len(about)) + about + places.tobytes())
        file.writelines(bodies)
    return path


class LearnedStep:
    """The learner's token statistics of a step, by trajectory name.

    Invariant: all values were written by the ranks of one learner step: if a run was resumed with fewer
    ranks, the files of the other ranks are ignored.
    """

    def __init__(self, frames: Path) -> None:
        """Look at the files beside a step's `frames`; there may be none. RecordError for a damaged one."""
        self._files = [_File(path) for path in learned_files(frames)]
        ranks = self._files[0].ranks if self._files else 0
        self._files = [file for file in self._files[:ranks] if file.ranks == ranks]

    def find(self, name: str, num_sequences: int = 1) -> LearnedTokens | None:
        """Return the statistics of the trajectory of this name (`str` of its key), sequence after sequence; None
        if no rank learned from it."""
        found = [one for k in range(num_sequences) if (one := self._find(sequence_name(name, k))) is not None]
        if len(found) <= 1:
            return found[0] if found else None
        return LearnedTokens(
            **{f.name: np.concatenate([getattr(one, f.name) for one in found]) for f in fields(found[0])}
        )

    def _find(self, name: str) -> LearnedTokens | None:
        number = task_number(name)
        for file in self._files:
            hits = np.flatnonzero(file.places["name"] == number)
            if len(hits):
                return file.read(int(hits[0]))
        return None


class _File:
    """One rank's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            about = read_head(file, path, MAGIC, (VERSION,), "token statistics")
            try:
                self.ranks, number = int(about["ranks"]), int(about["places"])
            except (ValueError, KeyError, TypeError, OverflowError):
                raise RecordError(f"{path}: its head is torn") from None
            if not 0 <= number <= path.stat().st_size // PLACE.itemsize:
                raise RecordError(f"{path}: claims {number} places, more than it holds")
            self.places: npt.NDArray[Any] = np.fromfile(file, PLACE, number)
        if len(self.places) != number:
            raise RecordError(f"{path}: {len(self.places)} places, {number} were written")

    def read(self, at: int) -> LearnedTokens:
        place = self.places[at]
        if int(place["offset"]) + int(place["size"]) > self.path.stat().st_size:
            raise RecordError(f"{self.path}: ends before what it has of a trajectory")
        with self.path.open("rb") as file:
            file.seek(int(place["offset"]))
            body = file.read(int(place["size"]))
        if zlib.crc32(body) != int(place["sum"]):
            raise RecordError(f"{self.path}: what it has of a trajectory is damaged")
        try:
            return _decoded(body, int(place["tokens"]))
        except (MemoryError, ValueError, struct.error, zstandard.ZstdError) as error:
            raise RecordError(f"{self.path}: no columns: {error}") from None


def _encoded(learned: Sequence[LearnedTokens]) -> Iterator[bytes]:
    """The columns of each; rounded all at once, as a trajectory may have a few tokens only."""
    if not learned:
        return
    gaps = _short(np.concatenate([tokens.gaps for tokens in learned]))
    entropies = np.concatenate([tokens.entropies for tokens in learned])
    shares = np.sqrt(np.clip(entropies, 0.0, MAX_ENTROPY) / MAX_ENTROPY)
    levels = np.nan_to_num(np.rint(shares * (_UNKNOWN - 1)), nan=_UNKNOWN).astype(np.uint8)
    ratios = _short(np.concatenate([tokens.log_ratios for tokens in learned]))
    codes = np.concatenate([tokens.codes for tokens in learned]).astype("u1")
    at = 0
    for tokens in learned:
        mine = slice(at, at + len(tokens))
        at += len(tokens)
        parts = [*compress_shuffled(gaps[mine]), compress(levels[mine].tobytes())]
        if tokens.log_ratios.any() or tokens.codes.any():
            parts += [*compress_shuffled(ratios[mine]), compress(codes[mine].tobytes())]
        yield pack_parts(parts)


def _decoded(body: bytes, number: int) -> LearnedTokens:
    if number > MAX_NUMBERS:
        raise ValueError(f"{number} tokens are claimed, at most {MAX_NUMBERS} are read")
    parts = unpack_parts(memoryview(body), MAX_PARTS)
    if len(parts) not in (3, 6):
        raise ValueError(f"{len(parts)} columns")
    levels = np.frombuffer(decompress(parts[2], number), "u1")
    entropies = (MAX_ENTROPY * np.square(levels / (_UNKNOWN - 1))).astype(np.float32)
    entropies[levels == _UNKNOWN] = np.nan
    ratios, codes = np.zeros(number, np.float32), np.zeros(number, np.uint8)
    if len(parts) == 6:
        ratios = decompress_shuffled(parts[3:5], number).astype(np.float32)
        codes = np.frombuffer(decompress(parts[5], number), "u1")
    gaps = decompress_shuffled(parts[:2], number).astype(np.float32)
    if not len(levels) == len(codes) == number:
        raise ValueError(f"columns of {len(levels)} and {len(codes)} tokens of {number}")
    return LearnedTokens(gaps=gaps, entropies=entropies, log_ratios=ratios, codes=codes)


def _short(values: Floats) -> npt.NDArray[np.float16]:
    """As float16 of 8 significant bits, rounded: the others would not compress. What does not fit is the
    largest that does."""
    most = np.finfo(np.float16).max
    halves = np.clip(values, -most, most).astype(np.float16)
    half = 1 << (_DROPPED_BITS - 1)
    bits = halves.view(np.uint16).astype(np.uint32)
    rounded = np.where(np.isfinite(halves), (bits + half) >> _DROPPED_BITS << _DROPPED_BITS, bits)
    # A step above the largest would be infinity.
    largest = np.uint32(np.float16(most).view(np.uint16)) >> _DROPPED_BITS << _DROPPED_BITS
    magnitude = np.minimum(rounded & 0x7FFF, np.where(np.isfinite(halves), largest, 0x7FFF))
    short: npt.NDArray[np.float16] = (magnitude | (bits & 0x8000)).astype(np.uint16).view(np.float16)
    return short

"""The result of a rehearsal, as lines of a plan and as JSON. Pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from rocstar.engine.progress.progress import format_bytes
from rocstar.train.rehearsal.memory_fit import OVERHEAD_GIB, KvCapacity, MemoryFit
from rocstar.train.rehearsal.memory_tracker import GIB, MemoryPeak, highest
from rocstar.train.rehearsal.rows import PackedStep
from rocstar.train.rehearsal.timeline import Hardware, Timeline, Transfers


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The result. `verdict` is None if the learner did not complete its acts: see `problems`."""

    verdict: MemoryFit | None = None
    peaks: list[MemoryPeak] = field(default_factory=list)
    host_gib: float = 0.0
    """The most that rank 0 holds on the host for files."""
    packing: dict[str, PackedStep] = field(default_factory=dict)
    """The packed step of each part of the recipe that learns."""
    reads: dict[str, int] = field(default_factory=dict)
    """Lines that wait for a value from the GPU, with their counts."""
    room: KvCapacity | None = None
    moved: Transfers | None = None
    timeline: Timeline | None = None
    hardware: Hardware | None = None
    misplaced: list[str] = field(default_factory=list)
    """Problems that would occur on a device."""
    seconds: float = 0.0

    @property
    def problems(self) -> list[str]:
        """Problems that refuse the plan."""
        found = [f"on a GPU this would fail: {one}" for one in self.misplaced]
        if self.verdict is not None and not self.verdict.fits:
            v = self.verdict
            act = highest(self.peaks).act
            found.append(
                f"{act} needs {v.peak_gib:.1f} GiB and {OVERHEAD_GIB:.0f} besides its tensors, "
                f"the GPU has {v.memory_gib:g}; {v.fix}"
            )
        if self.room is not None and self.room.kv <= 0:
            found.append(
                f"a server has no room for KV beside weights of {self.room.weights / GIB:.1f} GiB on each "
                "GPU; give it more GPUs (engine.replicas), or raise engine.args.mem-fraction-static"
            )
        return found

    def as_json(self) -> dict[str, Any]:
        """`peak_gib` and `fits` first: null and false where nothing came out."""
        verdict = self.verdict
        return {
            "peak_gib": verdict.peak_gib if verdict else None,
            "fits": verdict is not None and not self.problems,
            "rehearsal": {
                "verdict": _plain(verdict),
                "acts": {
                    peak.act: {"peak_gib": round(peak.total / GIB, 3), "by_category": peak.gib()}
                    for peak in self.peaks
                },
                "host_gib": self.host_gib,
                "packing": {name: _packing(one) for name, one in self.packing.items()},
                "reads": self.reads,
                "server": _plain(self.room),
                "transfers": _plain(self.moved),
                "timeline": _plain(self.timeline),
                "hardware": _plain(self.hardware),
                "misplaced": self.misplaced,
                "seconds": round(self.seconds, 1),
            },
        }

    def lines(self) -> list[str]:
        """The same for a person."""
        if self.verdict is None:
            return ["rehearsal: it did not come to its end"]
        v = self.verdict
        word = f"fits, {v.spare:.0%} to spare" if v.fits else "does NOT fit"
        lines = [
            f"rehearsed on a GPU of {v.memory_gib:g} GiB that is not there, in {self.seconds:.0f} s: {word}",
            f"  highest peak {v.peak_gib:.1f} GiB, in {highest(self.peaks).act}; {OVERHEAD_GIB:.0f} GiB more "
            "are taken for the driver and the collectives",
        ]
        for peak in self.peaks:
            parts = ", ".join(f"{name} {gib:.1f}" for name, gib in peak.gib().items() if gib >= 0.05)
            lines.append(f"  {peak.act:<11}{peak.total / GIB:>7.1f} GiB: {parts or 'next to nothing'}")
        for name, one in self.packing.items():
            lines.append(
                f"  {name} step: {one.rows:,} rows, {one.tokens:,} tokens, {one.rounds} microbatches a rank; "
                f"the heaviest has {one.heaviest:,} tokens, the longest row {one.longest:,}; efficiency "
                f"{one.efficiency:.2f}"
            )
        if (room := self.room) is not None:
            learner = room.held_by_learner / GIB
            beside = f", {learner:.1f} of the learner's state beside it" if learner else ""
            lines.append(
                f"  a server of {room.gpus} GPUs: {room.kv / GIB:.1f} GiB of KV on each{beside} = "
                f"{room.kv_tokens:,} tokens: {room.mean} trajectories of the mean "
                f"length, {room.longest} of the longest"
            )
        if (moved := self.moved) is not None:
            lines.append(
                f"  publish: {format_bytes(moved.publish_bytes)} to a server, {moved.publish_s:.0f} s; "
                f"checkpoint: {format_bytes(moved.checkpoint_bytes)}, {moved.checkpoint_s:.0f} s, and "
                f"{moved.checkpoint_write_s:.0f} s beside the next steps"
            )
        if (t := self.timeline) is not None:
            generate = "not known" if t.generate_s is None else f"at least {t.generate_s:.0f} s"
            lines.append(
                f"  a step: generate {generate}, learn {t.learn_s:.0f} s, publish {t.publish_s:.0f} s, "
                f"checkpoint {t.checkpoint_s:.1f} s; at stated bandwidths (docs/guide/rehearse.md)"
            )
        if self.host_gib >= 0.05:
            lines.append(f"  rank 0's host holds {self.host_gib:.1f} GiB for files")
        return lines


def _packing(step: PackedStep) -> dict[str, Any]:
    names = ("rows", "tokens", "longest", "heaviest", "rounds")
    return {name: getattr(step, name) for name in names} | {"efficiency": round(step.efficiency, 4)}


def _plain(value: Any) -> Any:
    return None if value is None else dataclasses.asdict(value)

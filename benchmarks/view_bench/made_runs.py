"""Runs of a given size for the viewer's benchmark, in the files that a run writes."""

from __future__ import annotations

import random
import struct
import sys
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rocstar.engine.record.columns import HEAD, MAGIC, encode_frame
from rocstar.engine.record.plain import Verdict
from rocstar.engine.record.step_file import FrameFile, Judged, StepFile
from rocstar.engine.types import Scored, Task, ToolCall, ToolResult, Trajectory, TrajectoryKey
from rocstar.train.record.metrics import MetricsWriter
from rocstar.train.record.run_directory import records_file

sys.path.append(str(Path(__file__).parents[2]))
from tests.engine.made_trajectories import MadeRecord, MadeTurn, spoken_trajectory, write_step_file

TEXT = "we need the remainder divided by seven compute sum over binomial terms triangle area prime check"
WORDS = TEXT.split()
DISTINCT = 200
"""Trajectories with texts and tokens of their own; the others repeat them under keys of their own."""
CONFIG = '[rl]\nroc_mode = "paper"\nroc_eps = 0.1\ngroup_size = 8\nrollouts_per_task = 16\n'
SIBLINGS = 16
NEEDLE = "zweiundvierzig"
"""A word that the last trajectory alone has."""


@dataclass(frozen=True, slots=True)
class MadeTrajectory:
    """A trajectory and the text of each segment."""

    trajectory: Trajectory
    texts: list[str]


def made_trajectory(num_tokens: int, turns: int, *, seed: int, word: str = "") -> MadeTrajectory:
    """A conversation of so many tokens of about 4 characters in so many turns, each but the last a call."""
    rng, dice = random.Random(seed), np.random.default_rng(seed)
    prompt, each = 120, (num_tokens - 120) // turns
    texts, told = ["question " * 60], []
    for k in range(turns):
        is_last = k == turns - 1
        whole = num_tokens - prompt - k * each if is_last else each
        tool = 0 if is_last else each // 5
        said = " ".join(rng.choices(WORDS, k=(whole - tool) * 4 // 6)) + (f" {word}" if is_last else "")
        calls, results = (), ()
        if is_last:
            said += "\n<answer>\\boxed{42}</answer>"
        else:
            code = f"x = {k}\nprint(sum(i * i for i in range(x)))"
            said += f'\n<tool_call>\n{{"name": "python", "arguments": {{"code": "{code!r}"}}}}\n</tool_call>'
            text = " ".join(str(rng.randrange(10**6)) for _ in range(tool * 4 // 7))
            calls = (ToolCall(name="python", arguments={"code": code}),)
            results = (ToolResult(status="ok", is_error=False, text=text),)
        texts += [said, *(result.text for result in results)]
        ids, logprobs = (
            dice.integers(0, 150_000, whole),
            -dice.exponential(0.4, whole - tool).astype(np.float32),
        )
        written, answer = ids[: whole - tool], ids[whole - tool :]
        told.append(
            MadeTurn(ids=written, logprobs=logprobs, text=said, calls=calls, results=results, answer=answer)
        )
    task = Task(id="t", source="made", question="How many? " * 20, answer="42")
    trajectory = spoken_trajectory(dice.integers(0, 150_000, prompt), told, task=task)
    return MadeTrajectory(trajectory, texts)


def make_run(folder: Path, *, trajectories: int, tokens: int, steps: int) -> Path:
    """A run of so many trajectories of so many tokens in 8 turns, in equal steps."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(CONFIG)
    made = [made_trajectory(tokens, 8, seed=k) for k in range(min(DISTINCT, trajectories))]
    frames = [encode_frame(one.trajectory, one.texts) for one in made]
    per_step = trajectories // steps
    with MetricsWriter(folder / "metrics.jsonl", clock=lambda: 0.0) as writer:
        for step in range(1, steps + 1):
            last = step == steps
            write_made_step(folder, step, per_step, made, frames, needle=tokens if last else 0)
            row = {"reward/mean": 0.3 + 0.5 * step / steps, "time/step": 60.0, "tokens/generated": 1e6}
            writer.write(row | {"reward/correct_share": 0.5}, step=step, stage="one", phase="rl")
    return folder


def write_made_step(
    folder: Path, step: int, num: int, made: list[MadeTrajectory], frames: list[bytes], *, needle: int = 0
) -> None:
    """One step; with `needle` its last trajectory has so many tokens and the word NEEDLE."""
    rng = random.Random(step)
    with FrameFile(records_file(folder, step), {}) as file:
        judged = []
        for number in range(num):
            which, task = (
                rng.randrange(len(made)),
                Task(
                    id=f"made-{step}-{number // SIBLINGS}", source="made", question="How many?", answer="42"
                ),
            )
            one, frame = made[which], frames[which]
            if needle and number == num - 1:
                one = made_trajectory(needle, 8, seed=1, word=NEEDLE)
                frame = encode_frame(one.trajectory, one.texts)
            key = TrajectoryKey(seed=0, step=step, task_id=task.id, sibling=number % SIBLINGS)
            is_correct = rng.random() < 0.5
            outcome = Scored(reward=float(is_correct), method="strict")
            trajectory = replace(
                one.trajectory, key=key, task=replace(one.trajectory.task, id=task.id), outcome=outcome
            )
            (place,) = file.append([_under(frame, trajectory)])
            bucket = rng.choice(["kept", "dropped_positive" if is_correct else "dropped_negative"])
            verdict = Verdict(
                bucket=bucket,
                penalty_error=rng.choice([0.0, 0.25]),
                penalty_format=0.0,
                advantage=rng.gauss(0, 1) if bucket == "kept" else None,
            )
            judged.append(Judged(trajectory=trajectory, verdict=verdict, num_answers=1, place=place))
        file.seal(judged, stage="one")


def _under(frame: bytes, trajectory: Trajectory) -> bytes:
    """The frame under another key: a list takes task and sibling from the index."""
    body = frame[HEAD.size :]
    (old,) = struct.unpack_from("<I", body)
    t = trajectory.key
    key = f'[{t.seed},{t.step},"t",{t.sibling}]'.encode()
    body = struct.pack("<I", len(key)) + key + body[4 + old :]
    return HEAD.pack(MAGIC, len(body), zlib.crc32(body)) + body


def make_wide_run(folder: Path, *, trajectories: int, steps: int) -> Path:
    """A run with an index of so many rows, and one short trajectory a step that all its rows point to."""
    made = [made_trajectory(300, 2, seed=1)]
    frames = [encode_frame(made[0].trajectory, made[0].texts)]
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(CONFIG)
    num = trajectories // steps
    write_made_step(folder, 1, num, made, frames)
    first = StepFile(records_file(folder, 1))
    index = records_file(folder, 1).with_suffix(".index").read_bytes()
    head = len(index) - first.rows.nbytes
    columns = records_file(folder, 1).read_bytes()
    rows = first.rows.copy()
    rows["offset"] = rows["offset"][0]
    rows["size"] = rows["size"][0]
    end = int(rows["offset"][0]) + int(rows["size"][0])
    dice = np.random.default_rng(0)
    for step in range(1, steps + 1):
        rows["step"] = step
        rows["task"] = dice.integers(0, 2**63, num // SIBLINGS + 1).astype("u8").repeat(SIBLINGS)[:num]
        rows["name"] = [f"made-{step}-{k // SIBLINGS}".encode() for k in range(num)]
        rows["reward"] = dice.integers(0, 2, num)
        rows["is_correct"] = rows["reward"] == 1
        rows["tokens"] = dice.integers(200, 20_000, num)
        path = records_file(folder, step)
        path.write_bytes(columns[:end])
        path.with_suffix(".index").write_bytes(index[:head] + rows.tobytes())
    return folder


def make_long_run(folder: Path, *, tokens: int, turns: int) -> Path:
    """A run of one step with one trajectory of so many tokens and turns, and a short one."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(CONFIG)
    made = [made_trajectory(tokens, turns, seed=5), made_trajectory(500, 2, seed=6)]
    verdict = Verdict(bucket="kept", penalty_error=0.0, penalty_format=0.0, advantage=0.5)
    records = [MadeRecord(trajectory=one.trajectory, texts=one.texts, verdict=verdict) for one in made]
    write_step_file(records_file(folder, 1), records)
    return folder

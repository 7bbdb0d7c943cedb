"""`rocstar train RECIPE --from-rollouts PATH`: train on the rollouts of another run, step by step.

    records of step k -> groups -> (loop.py) select, pack, update, record

Only the groups come from the records. Which of them are kept, with which advantage, is decided again, as it
would be live: by this recipe's RoC and seed. The log-probs are those of the rollout; the weights of the
rollout are not needed, because the off-policy correction compares log-probs token by token with the learner.
Policy versions in the records count the updates of the run that wrote them, so staleness is not known.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rocstar.engine.record.files import record_files
from rocstar.engine.record.json_record import RecordError, check_branches, from_record
from rocstar.engine.record.reading import read_records
from rocstar.engine.types import Group, Origin, Scored, Trajectory
from rocstar.train.groups.advantages import check_advantage
from rocstar.train.groups.source import Batch
from rocstar.train.learner.model_io import check_can_load, load_tokenizer, vocabulary_size
from rocstar.train.learner.own_loss import check_loss
from rocstar.train.recipe.config import Recipe, SftConfig
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import load_recipe
from rocstar.train.record.run_directory import CONFIG, TRAJECTORIES
from rocstar.train.tasks.chat_format import chat_format


@dataclass(slots=True)
class VersionCounter:
    """A publisher without an engine: the version goes on, the weights stay with the learner."""

    version: int = 0

    def updating(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def publish(self, version: int) -> None:
        if version <= self.version:
            raise ValueError(f"version {version} is not above {self.version}")
        self.version = version


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """A `Source`: trajectory records, one file per step, that fit a model.

    Invariant: of what `groups` gives, every scored trajectory has tokens that the model knows and a log-prob
    for each that the policy wrote, and no sibling of a group occurs twice.
    """

    path: Path
    files: Sequence[Path]
    """The files of step 1, step 2, ..."""
    recipe: Recipe
    """The recipe as it is learned: without a cold start, which the policy of the records had behind it."""
    num_ids: int
    """Token ids that the model knows."""
    decode: Callable[[Sequence[int]], str]

    @staticmethod
    def open(path: Path, recipe: Recipe, run_dir: Path) -> Records:
        """Find the files and look into each. ConfigError for what cannot be learned; nothing is written."""
        steps = sum(stage.steps for stage in recipe.stages)
        if not steps:
            raise ConfigError("the recipe has no RL step: there is nothing to learn from records; add [[stages]]")
        if (run_dir / TRAJECTORIES).resolve() in (path.resolve(), (path / TRAJECTORIES).resolve()):
            raise ConfigError(
                f"--from-rollouts {str(path)!r} and --output-dir are the same run; take another --output-dir"
            )
        check_advantage(recipe.rl.advantage)
        check_loss(recipe.rl.loss)
        files = _find(path, steps)
        _check_temperature(path, recipe)
        model = recipe.model.path
        if model == "scratch":
            raise ConfigError(
                "model.path = 'scratch': the recorded tokens are those of the model that wrote them; "
                f"set --model.path={_likely_model(path)}"
            )
        check_can_load(model)
        tokenizer = load_tokenizer(model)
        chat = chat_format(recipe, tokenizer)
        records = Records(
            path=path,
            files=files,
            recipe=recipe.model_copy(update={"sft": SftConfig(steps=0)}),
            num_ids=vocabulary_size(model) or len(tokenizer),
            decode=chat.decode,
        )
        for file in files:
            records.check_first(file)
        if not any("reward" in (record.get("outcome") or {}) for file in files for record in _read(file)):
            raise ConfigError(
                f"{str(path)!r}: no trajectory of its {len(files)} steps has a reward, all of them failed; "
                "roll out again when the cause in their 'outcome' is mended"
            )
        return records

    def __str__(self) -> str:
        return f"{len(self.files)} recorded steps in {self.path}"

    async def take(self, step: int) -> Batch:
        return Batch(groups=await asyncio.to_thread(self.groups, step), staleness=None)

    def state(self) -> dict[str, Any]:
        """Return an empty state: the step alone is the position."""
        return {}

    def groups(self, step: int) -> list[Group]:
        """The groups of a step by their tasks' ids. ConfigError for a record that is not whole.

        A run that rolls out ahead may have a task twice in a batch, with the attempts of two steps: those are
        two groups.
        """
        path = self.files[step - 1]
        trajectories = [self._trajectory(path, record) for record in _read(path)]
        trajectories.sort(key=lambda t: (*_group_of(t), t.key.order))
        for one, other in itertools.pairwise(trajectories):
            if one.key == other.key:
                raise ConfigError(f"{path}: trajectory {one.key} occurs twice; keep one of them")
        siblings = [tuple(members) for _, members in itertools.groupby(trajectories, key=_group_of)]
        try:
            for members in siblings:
                check_branches(members)
        except ValueError as error:
            raise ConfigError(f"{path}: {error}") from None
        return [Group(task=members[0].task, trajectories=members) for members in siblings]

    def _trajectory(self, path: Path, record: dict[str, Any]) -> Trajectory:
        try:
            trajectory = from_record(record)
            if isinstance(trajectory.outcome, Scored):
                _check_whole(trajectory)
        except (ValueError, KeyError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(f"{path}: record {record.get('id')!r} is not whole: {reason}") from None
        largest = int(trajectory.ids.max(initial=-1))
        if largest >= self.num_ids:
            raise ConfigError(
                f"{path}: record {record['id']!r} has token {largest}, the model "
                f"{self.recipe.model.path!r} knows {self.num_ids}; {self._other_model()}"
            )
        return trajectory

    def check_first(self, path: Path) -> None:
        """Whether the first record of a file is one of this tokenizer's."""
        record = next(iter(_read(path)), None)
        if record is None:
            raise ConfigError(f"{path} holds no record; roll out its step again")
        trajectory = self._trajectory(path, record)
        for segment in record["segments"]:
            text = self.decode(trajectory.ids[segment["start"] : segment["end"]].tolist())
            if text != segment["text"]:
                raise ConfigError(
                    f"{path}: the tokens of record {record['id']!r} read {_shown(segment['text'])}, the "
                    f"tokenizer of {self.recipe.model.path!r} makes {_shown(text)} of them; " + self._other_model()
                )

    def _other_model(self) -> str:
        known = _likely_model(self.path, other_than=self.recipe.model.path)
        return f"the records belong to another model: set --model.path={known}"


def _group_of(trajectory: Trajectory) -> tuple[str, int]:
    return trajectory.task.id, trajectory.key.step


def _find(path: Path, steps: int) -> list[Path]:
    """The files of steps 1 to `steps`: of a run, of a folder of them, or one file for one step."""
    if path.is_file():
        files = {1: path}
    else:
        folder = path / TRAJECTORIES if (path / TRAJECTORIES).is_dir() else path
        files = record_files(folder)
    if not files:
        raise ConfigError(
            f"--from-rollouts {str(path)!r} has no records; give a run directory, a folder of its step "
            "files, or a file that `rocstar rollout` wrote"
        )
    missing = [step for step in range(1, steps + 1) if step not in files]
    if missing:
        have = sorted(files)
        if have[-1] - have[0] + 1 != len(have):
            text = f"{len(have)} steps between {have[0]} and {have[-1]}"
        else:
            text = f"steps {have[0]} to {have[-1]}" if len(have) > 1 else f"step {have[0]}"
        raise ConfigError(
            f"the recipe asks for {steps} steps, {str(path)!r} has no records of step {missing[0]} "
            f"(it has {text}); lower stages.*.steps or record more"
        )
    return [files[step] for step in range(1, steps + 1)]


def _check_temperature(path: Path, recipe: Recipe) -> None:
    """Log-probs depend on the temperature, which a record does not have; the run beside it does."""
    if not (path / CONFIG).is_file():
        return
    was, now = load_recipe(path / CONFIG).rl.temperature, recipe.rl.temperature
    if was != now:
        raise ConfigError(
            f"rl.temperature = {now}, but {str(path)!r} was rolled out at {was}; set --rl.temperature={was}"
        )


def _likely_model(path: Path, *, other_than: str = "") -> str:
    """Where the model that wrote the records may be."""
    first = path / "checkpoints" / "step_0"
    if not first.is_dir() or (other_than and first.resolve() == Path(other_than).resolve()):
        return "the folder of that model"
    return str(first)


def _read(path: Path) -> Any:
    try:
        yield from read_records(path)
    except RecordError as error:
        raise ConfigError(str(error)) from None
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error.strerror}") from None


def _check_whole(trajectory: Trajectory) -> None:
    """ValueError for tokens that no segment or no log-prob belongs to."""
    t, end = trajectory, 0
    if len(t.logprobs) != len(t.ids):
        raise ValueError(f"{len(t.ids)} tokens, {len(t.logprobs)} log-probs")
    for segment in t.segments:
        if segment.start != end or segment.end < end:
            raise ValueError(f"its segments have a gap at token {end}")
        end = segment.end
    prompts = {s.start for s in t.segments if s.origin is Origin.prompt and s.end > s.start}
    if end != len(t.ids) or not prompts.issuperset(t.starts):
        raise ValueError(f"its segments do not cover a prompt and all of its {len(t.ids)} tokens")
    for token in np.flatnonzero(t.loss_mask() & ~np.isfinite(t.logprobs)):
        value = t.logprobs[token]
        if np.isnan(value):
            raise ValueError(f"token {token} of the policy has no log-prob: its engine gave none")
        raise ValueError(f"token {token} of the policy has log-prob {value}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")

"""Which changes a resumed run takes, each field decided on purpose, and what stands of its metrics."""

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from rocstar.train.learner import checkpoint
from rocstar.train.plan.resume import FIXED, bytes_to_keep, check_changes, is_complete, recipe_changes, take_recipe
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.fields import surface
from rocstar.train.recipe.load import parse_recipe, to_toml
from rocstar.train.record.metrics import MetricsWriter, num_succeeded, read_metrics
from rocstar.train.record.run_directory import config_of

FREE = {
    "run.name": "is a name",
    "run.threads": "is the machine's",
    "run.trackers": "watches",
    "run.callbacks.*": "listens",
    "run.keep_records": "is what is kept",
    "model.activation_checkpointing": "buys memory with time",
    "model.sharding": "is where weights lie, not what they are",
    "model.offload_moments": "is where they lie while nobody learns",
    "tool.sandbox": "is where programs run",
    "tool.wall_s": "is the machine's: a slower one must give more",
    "tool.memory_mb": "is the machine's",
    "reward.timeout_s": "is the machine's",
    "rl.*": "is the algorithm of the steps to come; each step's metrics and records are of itself alone",
    "teacher.*": "is the algorithm of the steps to come, too",
    "off_policy.*": "is the algorithm of the steps to come, and its gate asks for a change",
    "eval.*.every": "is how often, not how",
    "eval.*.path": "is where a copy lies; what is in it is checked",
    "engine.*": "is how and where rollouts are made, not of what",
    "checkpoint.*": "is what is kept",
}
"""Fields that a resumed run may change, and why."""
STAGE = {"steps": 4, "max_response_tokens": 100, "max_turns": 3}
DATA = {"source": "tasks.jsonl"}
RAW: dict[str, Any] = {
    "model": {"template": "compact"},
    "stages": [{"name": "one", **STAGE, "data": DATA}, {"name": "two", **STAGE}],
    "eval": [{"data": {"source": "held.jsonl"}}],
}


def recipe(*paths: str, **values: Any) -> Recipe:
    """RAW with the value at each dotted path."""
    raw = json.loads(json.dumps(RAW))
    for path, value in values.items():
        *parents, last = path.split("__")
        node = raw
        for part in parents:
            node = node[int(part)] if part.isdigit() else node.setdefault(part, {})
        node[last] = value
    return parse_recipe(raw, where="test")


def refused(now: Recipe, *, step: int = 2, done: int = 2) -> list[str]:
    return [c.field for c in recipe_changes(recipe(), now, step=step, done=done) if c.refusal]


def test_every_field_is_decided_once() -> None:
    for field in surface():
        name = field.removesuffix(" = DATA").replace("eval.", "eval.0.")
        tables = [t for t in (FIXED, FREE) if any(fnmatchcase(name, pattern) for pattern in t)]
        if name.startswith("stages.") or name.startswith("DATA."):
            assert tables == [], "a stage's fields are free until it begins"
        elif name == "rl.temperature":
            assert tables == [FIXED, FREE], "the fixed table is asked first"
        else:
            assert len(tables) == 1, name


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model__template", "rstar2"),
        ("model__thinking", "keep"),
        ("model__dtype", "bfloat16"),
        ("model__path", "elsewhere"),
        ("model__scratch", {"num_layers": 4}),
        ("tool__text", "rstar2"),
        ("tools", ["jupyter"]),
        ("tools", [{"kind": "python"}, {"kind": "m:C"}]),
        ("tool__max_output_tokens", 64),
        ("run__seed", 7),
        ("sft__lr", 1e-3),
        ("rl__temperature", 0.7),
        ("eval__0__samples_per_task", 8),
        ("eval__0__data", {"source": "other.jsonl"}),
        ("stages__0__data", {"source": "other.jsonl"}),
        ("stages__0__max_turns", 9),
    ],
)
def test_what_the_policy_reads_or_what_was_measured_stays(field: str, value: Any) -> None:
    (name,) = refused(recipe(**{field: value}))
    assert name.startswith(field.replace("__", "."))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rl__lr", 1e-3),
        ("rl__group_size", 8),
        ("run__trackers", ["tensorboard"]),
        ("run__threads", 2),
        ("checkpoint__every", 5),
        ("eval__0__every", 5),
        ("off_policy__cap", 3.0),
        ("engine__max_running", 3),
        ("tool__wall_s", 60.0),
        ("stages__0__steps", 9),
        ("stages__1__steps", 1),
        ("stages__1__data", {"source": "other.jsonl"}),
    ],
)
def test_what_is_still_to_come_may_change_and_is_told(field: str, value: Any) -> None:
    now = recipe(**{field: value})
    found = recipe_changes(recipe(), now, step=2, done=2)
    assert found and refused(now) == []
    assert found[0].field.startswith(field.replace("__", "."))


def test_steps_that_were_done_are_not_undone() -> None:
    assert refused(recipe(stages__0__steps=3), step=2, done=3) == []
    assert refused(recipe(stages__0__steps=2), step=2, done=3) == ["stages.0.steps"]
    assert refused(recipe(stages__0__steps=9), step=5, done=5) == ["stages.0.steps"], "that stage is over"
    assert refused(recipe(stages__1__steps=9), step=8, done=8) == []
    one = recipe().model_copy(update={"stages": recipe().stages[:1]})
    assert refused(one, step=4, done=4) == [] and "stages.1.name" in refused(one, step=5, done=5)


def test_a_new_last_stage_must_not_change_the_evaluation_unseen() -> None:
    stages = [*RAW["stages"], {"name": "three", **STAGE, "max_response_tokens": 200}]
    longer = parse_recipe(RAW | {"stages": stages}, where="test")
    assert refused(longer) == ["eval.0.max_response_tokens"]
    settled = parse_recipe(
        RAW | {"stages": stages, "eval": [RAW["eval"][0] | {"max_response_tokens": 100}]}, where="test"
    )
    assert refused(settled) == []


def test_one_path_written_two_ways_is_one_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    now = recipe(stages__0__data={"source": str(tmp_path / "tasks.jsonl")})
    assert recipe_changes(recipe(), now, step=2, done=2) == []


# ---- a run directory ----


def begin(directory: Path, *, step: int = 2, behind: tuple[tuple[str, str, int], ...] = ()) -> Path:
    """A run with a checkpoint at `step` and rows (phase, stage, step) behind it; returns the checkpoint."""
    directory.mkdir(exist_ok=True)
    (directory / "config.toml").write_text(to_toml(recipe()))
    with MetricsWriter(directory / "metrics.jsonl") as metrics:
        for k in range(1, step + 1):
            metrics.write({"reward/mean": 0.0}, step=k, stage="one", phase="rl")
        size = metrics.num_bytes
        for phase, stage, k in behind:
            metrics.write({"reward/mean": 0.5}, step=k, stage=stage, phase=phase)  # type: ignore[arg-type]
    saved = checkpoint.step_directory(directory, step)
    (saved / "state").mkdir(parents=True)
    state = {"progress": {"step": step, "metrics_bytes": size, "source": "live"}}
    (saved / "state" / "progress.json").write_text(json.dumps(state))
    (saved / "COMPLETE").touch()
    return saved


def places(directory: Path) -> list[tuple[str, str, int]]:
    return [(r["phase"], r["stage"], r["step"]) for r in read_metrics(directory / "metrics.jsonl")]


def test_a_refusal_names_every_field_with_both_values_and_writes_nothing(tmp_path: Path) -> None:
    saved = begin(tmp_path)
    before = (tmp_path / "config.toml").read_text()
    with pytest.raises(ConfigError) as failure:
        take_recipe(recipe(model__template="rstar2", run__seed=4, rl__lr=0.5), tmp_path, saved)
    message = str(failure.value)
    assert "model.template is part of what the policy reads" in message
    assert "! run.seed: was 0, now 4" in message and "! model.template: was 'compact', now 'rstar2'" in message
    assert "  rl.lr: was 1e-06, now 0.5" in message and "another --output-dir" in message
    assert (tmp_path / "config.toml").read_text() == before
    assert not list(tmp_path.glob("config.*.toml"))


def test_a_change_that_is_taken_keeps_the_recipe_that_was(tmp_path: Path) -> None:
    saved = begin(tmp_path)
    former = (tmp_path / "config.toml").read_text()
    for number, lr in enumerate((0.5, 0.25), start=1):
        told = take_recipe(recipe(rl__lr=lr), tmp_path, saved)
        assert told is not None and f"now {lr}" in told and f"config.{number}.toml" in told
    assert take_recipe(recipe(rl__lr=0.25), tmp_path, saved) is None, "nothing changed"
    assert (tmp_path / "config.toml").read_text() == to_toml(recipe(rl__lr=0.25))
    assert (tmp_path / "config.1.toml").read_text() == f"# in force up to step 2\n{former}"
    assert [config_of(tmp_path, step).name for step in (1, 2, 3)] == [
        *("config.1.toml", "config.1.toml"),
        "config.toml",
    ]


def test_a_run_without_a_checkpoint_begins_again_with_any_recipe(tmp_path: Path) -> None:
    begin(tmp_path)
    found = check_changes(tmp_path, recipe(run__seed=4), None)
    assert [(change.field, change.refusal) for change in found] == [("run.seed", None)]


def test_a_recipe_of_the_run_that_cannot_be_read_is_one_message(tmp_path: Path) -> None:
    saved = begin(tmp_path)
    (tmp_path / "config.toml").write_text("[rl\n")
    with pytest.raises(ConfigError, match="not the recipe of a run"):
        check_changes(tmp_path, recipe(), saved)
    (tmp_path / "config.toml").unlink()
    assert check_changes(tmp_path, recipe(), saved) == []


def test_complete_is_the_last_step_and_its_evaluation(tmp_path: Path) -> None:
    saved = begin(tmp_path / "a", step=8)
    assert not is_complete(recipe(), tmp_path / "a", saved, live=True)
    assert is_complete(recipe(), tmp_path / "a", saved, live=False), "from records nothing is evaluated"
    saved = begin(tmp_path / "b", step=8, behind=(("eval", "eval", 8),))
    assert is_complete(recipe(), tmp_path / "b", saved, live=True)
    assert not is_complete(recipe(stages__1__steps=5), tmp_path / "b", saved, live=True)


def test_an_evaluation_of_the_checkpoint_stands_when_the_run_is_extended(tmp_path: Path) -> None:
    saved = begin(tmp_path, step=8, behind=(("eval", "eval", 8),))
    with MetricsWriter(tmp_path / "metrics.jsonl", keep_bytes=bytes_to_keep(tmp_path, saved)) as metrics:
        metrics.write({"reward/mean": 1.0}, step=9, stage="two", phase="rl")
    assert places(tmp_path)[-2:] == [("eval", "eval", 8), ("rl", "two", 9)]


def test_a_row_goes_when_its_successor_is_there(tmp_path: Path) -> None:
    """Between any two writes the file holds every row that it had, and whole."""
    old = (("eval", "one", 2), ("rl", "one", 3), ("eval", "eval", 3), ("rl", "one", 4))
    saved = begin(tmp_path, behind=old)
    path = tmp_path / "metrics.jsonl"
    before = path.read_bytes()
    size = bytes_to_keep(tmp_path, saved)
    with MetricsWriter(path, keep_bytes=size) as metrics:
        assert path.read_bytes() == before and metrics.num_bytes == size, "opened, not cut"
        for done, (phase, stage, step) in enumerate(old, start=1):
            metrics.write({"reward/mean": 1.0}, step=step, stage=stage, phase=phase)  # type: ignore[arg-type]
            assert places(tmp_path)[2:] == list(old)
            rewards = [row["reward/mean"] for row in read_metrics(path)[2:]]
            assert rewards == [1.0] * done + [0.5] * (len(old) - done)
            assert metrics.num_bytes == len(b"".join(path.read_bytes().splitlines(True)[: 2 + done]))
        metrics.write({"reward/mean": 1.0}, step=5, stage="two", phase="rl")
    assert places(tmp_path)[2:] == [*old, ("rl", "two", 5)]
    assert not list(tmp_path.glob("*.partial"))


def test_a_write_that_fails_leaves_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = begin(tmp_path, behind=(("rl", "one", 3), ("rl", "one", 4)))
    path = tmp_path / "metrics.jsonl"
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with MetricsWriter(path, keep_bytes=bytes_to_keep(tmp_path, saved)) as metrics:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", full)
            with pytest.raises(OSError, match="No space"):
                metrics.write({"reward/mean": 1.0}, step=3, stage="one", phase="rl")
        assert path.read_bytes() == before and not list(tmp_path.glob("*.partial"))
        metrics.write({"reward/mean": 1.0}, step=3, stage="one", phase="rl")
    assert [row["reward/mean"] for row in read_metrics(path)] == [0.0, 0.0, 1.0, 0.5]


def test_rows_that_a_changed_recipe_leaves_out_go_with_the_next() -> None:
    rows: list[dict[str, Any]] = [
        {"phase": "sft", "stage": "sft", "step": 10},
        {"phase": "eval", "stage": "eval", "step": 0},
        {"phase": "eval", "stage": "one", "step": 0},
        {"phase": "rl", "stage": "one", "step": 1},
        {"phase": "eval", "stage": "eval", "step": 1},
    ]
    for number, row in enumerate(rows, start=1):
        assert num_succeeded(rows, row) == number
    assert num_succeeded(rows, {"phase": "rl", "stage": "one", "step": 2}) == 5
    assert num_succeeded(rows, {"phase": "sft", "stage": "sft", "step": 5}) == 0
    assert num_succeeded(rows, {"phase": "rl", "stage": "other", "step": 1}) == 3

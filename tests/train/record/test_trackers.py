"""Trackers: what is sent to each package, and what a user hears when it is not there."""

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

from rocstar.train.recipe.config import RunConfig
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.trackers import TRACKERS, check_tracker, make_tracker

from ...needs import Need

METRICS = {"reward/mean": 0.5, "loss/policy": None, "ratio/max": math.inf, "optim/grad_norm": math.nan}


class Recorder:
    """Takes any method call and remembers it."""

    def __init__(self, calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]]) -> None:
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> "Recorder":
            self._calls.append((name, args, kwargs))
            return self

        return call


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """The calls that fakes of all three packages received."""
    found: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
    recorder = Recorder(found)
    for name in ("wandb", "trackio", "torch", "torch.utils", "torch.utils.tensorboard"):
        module = ModuleType(name)
        for function in ("init", "log", "finish", "SummaryWriter"):
            setattr(module, function, getattr(recorder, function))
        monkeypatch.setitem(sys.modules, name, module)
    for variable in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    return found


def run_through(name: str, run_dir: Path) -> None:
    tracker = make_tracker(name, run_dir=run_dir, config={"seed": 7})
    tracker.on_step({"step": 3, "stage": "one", "phase": "rl", "time_s": 1.5, **METRICS})
    tracker.on_end("complete")


def test_tensorboard_writes_scalars(calls: list[Any], tmp_path: Path) -> None:
    run_through("tensorboard", tmp_path)
    assert calls == [
        ("SummaryWriter", (), {"log_dir": str(tmp_path / "logs" / "tensorboard")}),
        ("add_scalar", ("reward/mean", 0.5, 3), {}),
        ("flush", (), {}),
        ("close", (), {}),
    ]


def test_wandb_is_offline_unless_asked_otherwise(
    calls: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_through("wandb", tmp_path)
    settings = {"project": "rocstar", "name": tmp_path.name, "dir": str(tmp_path / "logs"), "config": {"seed": 7}}
    assert calls == [
        ("init", (), settings | {"mode": "offline"}),
        ("define_metric", ("*",), {"step_metric": "step"}),
        ("log", ({"step": 3, "reward/mean": 0.5},), {}),
        ("finish", (), {}),
    ]
    assert (tmp_path / "logs").is_dir()
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    run_through("wandb", tmp_path)
    assert calls[4][2]["mode"] == "online"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    run_through("wandb", tmp_path)
    assert calls[8][2]["mode"] == "disabled"


def test_trackio_gets_step_and_metrics(calls: list[Any], tmp_path: Path) -> None:
    run_through("trackio", tmp_path)
    assert calls == [
        ("init", (), {"project": "rocstar", "name": tmp_path.name, "config": {"seed": 7}, "resume": "allow"}),
        ("log", ({"reward/mean": 0.5},), {"step": 3}),
        ("finish", (), {}),
    ]


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_is_one_sentence_with_the_cure(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("wandb", "trackio", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"pip install {name}"):
        make_tracker(name, run_dir=tmp_path, config={})
    with pytest.raises(ConfigError, match=rf"pip install {name}"):
        check_tracker(name)


def test_a_recipe_names_the_trackers_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    (names,) = get_args(RunConfig.model_fields["trackers"].annotation)
    assert get_args(names) == tuple(TRACKERS)
    monkeypatch.setitem(sys.modules, "wandb", ModuleType("wandb"))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    for key, unknown in (("", 0), ("secret", 1)):
        monkeypatch.setenv("WANDB_API_KEY", key)
        assert len(check_tracker("wandb")) == unknown


def test_a_tracker_hears_of_steps_and_evaluations(calls: list[Any], tmp_path: Path) -> None:
    """As callbacks do: the row's step, and its metrics without what is not one."""
    tracker = make_tracker("trackio", run_dir=tmp_path, config={})
    row = {"step": 3, "stage": "one", "phase": "rl", "time_s": 1.5, "reward/mean": 0.5, "loss/policy": None}
    tracker.on_step(row)
    tracker.on_evaluation(row | {"phase": "eval"})
    tracker.on_end("complete")
    assert calls[1:] == [("log", ({"reward/mean": 0.5},), {"step": 3})] * 2 + [("finish", (), {})]


ROW = {"step": 2, "stage": "one", "phase": "rl", "time_s": 1.5, "reward/mean": 0.5, "loss/policy": None}
WRITTEN = {
    "tensorboard": "run/logs/tensorboard/events.out.tfevents.*",
    "wandb": "run/logs/wandb/offline-run-*/run-*.wandb",
    "trackio": "trackio/rocstar.db",
}
"""What docs/guide/trackers.md says that each package writes."""


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", TRACKERS)
def test_the_real_package_writes_where_the_guide_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = Need(f"the package {name}", f"pip install {name}")
    if importlib.util.find_spec(name) is None:
        needed.skip()
    for variable in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    tracker = make_tracker(name, run_dir=tmp_path / "run", config={"run": {"seed": 7}})
    tracker.on_step(ROW)
    tracker.on_end("complete")
    [path] = tmp_path.glob(WRITTEN[name])
    assert b"reward/mean" in path.read_bytes() or b"0.5" in path.read_bytes()


def test_the_guide_names_every_tracker_and_where_it_writes() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "guide" / "trackers.md").read_text(encoding="utf-8")
    for name in TRACKERS:
        assert f"| `{name}` | `pip install {name}` |" in guide
    assert "`logs/tensorboard/`" in guide and "`logs/wandb/`" in guide and "`TRACKIO_DIR`" in guide

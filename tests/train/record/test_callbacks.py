"""Who listens to a run: what is heard, that nothing can be changed, and what a listener that fails costs."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocstar.train.groups.selection import FAILED
from rocstar.train.recipe import own_code
from rocstar.train.recipe.config import CallbackConfig, Recipe, RunConfig
from rocstar.train.recipe.errors import ConfigError, TrainingStopped
from rocstar.train.recipe.load import load_recipe
from rocstar.train.record import trackers
from rocstar.train.record.callbacks import Callback, Listeners, RunStart, StopRun
from rocstar.train.record.trackers import listening
from tests.fakes.trajectories import make_trajectory

ROW = {"step": 1, "stage": "one", "phase": "rl", "time_s": 2.0, "reward/mean": 0.5}


class Heard(Callback):
    """Remembers everything that it hears."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []


def _remember(name: str) -> Callable[..., None]:
    def method(self: Heard, *arguments: Any) -> None:
        self.said.append((name, *arguments))

    return method


EVENTS = [name for name in vars(Callback) if name.startswith("on_")]
for name in EVENTS:
    setattr(Heard, name, _remember(name))


def tell_all(listeners: Listeners) -> None:
    """Every event once, as a run does."""
    recipe = Recipe()
    listeners.start(RunStart(recipe=recipe, directory=Path("runs/x"), total_steps=3, step=0))
    listeners.cold_start(1, 10, {"loss/sft": 2.0})
    listeners.groups(1, [])
    listeners.row(dict(ROW))
    listeners.row(ROW | {"phase": "eval", "stage": "eval"})
    listeners.checkpoint(1, Path("runs/x/checkpoints/step_1"))
    listeners.note("two servers")
    listeners.end("complete")


def test_a_callback_hears_of_everything() -> None:
    one, two = Heard(), Heard()
    listeners = Listeners(Callback())
    listeners.add(one)
    listeners.add(two)
    tell_all(listeners)
    assert [said[0] for said in one.said] == EVENTS
    assert one.said[1] == ("on_cold_start", 1, 10, {"loss/sft": 2.0})
    assert one.said[3] == ("on_step", ROW) and one.said[4][1]["phase"] == "eval"
    assert one.said == two.said


def test_what_is_heard_cannot_be_changed() -> None:
    class Meddler(Callback):
        failed = 0

        def on_step(self, row: Any) -> None:
            with pytest.raises(TypeError):
                row["reward/mean"] = 1.0
            self.failed += 1

        def on_cold_start(self, step: int, total: int, metrics: Any) -> None:
            with pytest.raises(TypeError):
                metrics["loss/sft"] = 0.0
            self.failed += 1

        def on_groups(self, step: int, judged: Any) -> None:
            with pytest.raises(AttributeError):
                judged.clear()
            with pytest.raises(AttributeError):
                judged[0][0].outcome = None
            self.failed += 1

    meddler, verdicts = Meddler(), [(make_trajectory(), FAILED)]
    listeners = Listeners(Callback())
    listeners.add(meddler)
    listeners.row(dict(ROW))
    listeners.cold_start(1, 1, {"loss/sft": 1.0})
    listeners.groups(1, verdicts)
    assert meddler.failed == 3 and len(verdicts) == 1


def test_the_recipe_that_is_heard_of_is_a_copy(tmp_path: Path) -> None:
    class Meddler(Callback):
        def on_run_start(self, run: RunStart) -> None:
            run.recipe.run.trackers.append("wandb")

    recipe = Recipe()
    with listening(recipe, tmp_path, Callback(), [Meddler()], step=0):
        assert recipe.run.trackers == []


@pytest.mark.parametrize("event", [event for event in EVENTS if event != "on_run_start"])
def test_one_that_fails_is_told_of_once_and_hears_no_more(event: str) -> None:
    console, broken, other = Heard(), Heard(), Heard()

    def fail(*_: Any) -> None:
        broken.said.append((event,))
        raise KeyError("nonsense")

    setattr(broken, event, fail)
    listeners = Listeners(console)
    for listener in (broken, other):
        listeners.add(listener)
    tell_all(listeners)
    assert [said[0] for said in other.said] == EVENTS, "the others hear on"
    assert [said[0] for said in broken.said] == EVENTS[: EVENTS.index(event) + 1]
    (told,) = [said[1] for said in console.said if said[0] == "on_note" and "nonsense" in said[1]]
    assert f"Heard.{event} failed" in told and "Traceback" in told and "in fail" in told
    assert listeners.stop is None


def test_one_that_stops_the_run_says_why_and_hears_on() -> None:
    class Stopper(Heard):
        def on_step(self, row: Any) -> None:
            raise StopRun("enough")

    console, stopper, other = Heard(), Stopper(), Heard()
    listeners = Listeners(console)
    for listener in (stopper, other):
        listeners.add(listener)
    tell_all(listeners)
    assert listeners.stop == "Stopper: enough" and stopper.said[-1] == ("on_end", "complete")
    assert [said[0] for said in other.said] == EVENTS
    assert not [said for said in console.said if "failed" in str(said)]


def test_an_interruption_is_nobodys_failure() -> None:
    class Slow(Callback):
        def on_step(self, row: Any) -> None:
            raise KeyboardInterrupt

    listeners = Listeners(Callback())
    listeners.add(Slow())
    with pytest.raises(KeyboardInterrupt):
        listeners.row(dict(ROW))


# ---- those of a run ----


@pytest.mark.parametrize(
    ("error", "how"),
    [
        (None, "complete"),
        (TrainingStopped("stuck"), "stopped"),
        (KeyboardInterrupt(), "interrupted"),
        (asyncio.CancelledError(), "interrupted"),
        (ValueError("a bug"), "failed"),
    ],
)
def test_they_hear_how_it_ended(tmp_path: Path, error: BaseException | None, how: str) -> None:
    heard = Heard()
    with (
        pytest.raises(type(error)) if error else contextlib.nullcontext(),
        listening(Recipe(), tmp_path, Callback(), [heard], step=4),
    ):
        if error is not None:
            raise error
    start = heard.said[0][1]
    assert (start.directory, start.step, start.total_steps) == (tmp_path, 4, 0)
    assert heard.said[-1] == ("on_end", how)


def test_a_run_that_was_stopped_says_so(tmp_path: Path) -> None:
    class Stopper(Heard):
        def on_step(self, row: Any) -> None:
            raise StopRun("enough")

    heard = Stopper()
    with listening(Recipe(), tmp_path, Callback(), [heard], step=0) as listeners:
        listeners.row(dict(ROW))
    assert heard.said[-1] == ("on_end", "stopped")


def test_one_that_fails_at_the_start_ends_the_run(tmp_path: Path) -> None:
    class Broken(Callback):
        def on_run_start(self, run: RunStart) -> None:
            raise OSError("no such place")

    heard = Heard()
    with (
        pytest.raises(ConfigError, match="Broken: on_run_start failed: OSError: no such place"),
        listening(Recipe(), tmp_path, Callback(), [heard, Broken()], step=0),
    ):
        raise AssertionError("nothing is begun")
    assert heard.said[-1] == ("on_end", "failed"), "those before it close what they opened"


def test_a_tracker_that_fails_costs_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when its server is not reached."""

    class Unreachable(trackers.Callback):
        def on_step(self, row: Any) -> None:
            raise ConnectionError("503")

    monkeypatch.setattr(trackers, "make_tracker", lambda *_, **__: Unreachable())
    console = Heard()
    recipe = Recipe(run=RunConfig(trackers=["wandb"]))
    with listening(recipe, tmp_path, console, step=0) as listeners:
        listeners.row(dict(ROW))
        listeners.row(dict(ROW))
    assert sum("503" in str(said) for said in console.said) == 1


# ---- those that a recipe names ----

MINE = """
from rocstar.train.record.callbacks import Callback

class Mine(Callback):
    def __init__(self, where: str, steps: int = 3) -> None:
        self.where, self.steps = where, steps

class Refuses(Callback):
    def __init__(self) -> None:
        raise RuntimeError("no account")

class Another:
    pass

def function():
    pass
"""


def make_callback(config: CallbackConfig) -> Any:
    return own_code.make(config.kind, config.args, Callback, field="run.callbacks.0.kind")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_listeners.py").write_text(MINE)
    (tmp_path / "r.toml").write_text('[run]\ncallbacks = ["my_listeners:Refuses"]\n')
    return tmp_path


def test_a_recipe_names_classes_beside_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe(folder / "r.toml", ['--run.callbacks.0={ kind = "my_listeners:Mine" }'])
    there = os.path.abspath("my_listeners.py")
    assert recipe.run.callbacks[0].kind == f"{there}:Mine", "an option's is in the current directory"
    (folder / "r.toml").write_text('[[run.callbacks]]\nkind = "my_listeners:Mine"\nargs = { where = "here" }\n')
    recipe = load_recipe(folder / "r.toml")
    assert recipe.run.callbacks[0].kind == f"{folder}/my_listeners.py:Mine"
    made: Any = make_callback(recipe.run.callbacks[0])
    assert (made.where, made.steps) == ("here", 3)


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("Mine", {}, "missing a required argument: 'where'"),
        ("Mine", {"where": "x", "stepps": 3}, "unexpected keyword argument 'stepps'"),
        ("Another", {}, "no subclass of"),
        ("function", {}, "no subclass of"),
        ("Nobody", {}, "has no 'Nobody'; it defines Another, Mine, Refuses, function"),
    ],
)
def test_a_class_that_cannot_listen_is_found_before_anything(
    folder: Path, name: str, args: dict[str, Any], words: str
) -> None:
    config = CallbackConfig(kind=f"{folder}/my_listeners.py:{name}", args=args)
    with pytest.raises(ConfigError) as refused:
        make_callback(config)
    told = str(refused.value)
    assert told.startswith("run.callbacks.0.kind = ") and words in told and "\n" not in told


def test_one_that_cannot_be_made_is_a_mistake_in_the_recipe(folder: Path) -> None:
    config = CallbackConfig(kind=f"{folder}/my_listeners.py:Refuses")
    with pytest.raises(ConfigError, match=r"args = \{\}: RuntimeError: no account"):
        make_callback(config)

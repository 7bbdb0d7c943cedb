"""A checkpoint is whole or does not exist, and what goes on from it goes on exactly."""

import concurrent.futures
import os
import resource
import shutil
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from rocstar.engine.inference.weights import LiveWeights
from rocstar.train.learner import checkpoint
from rocstar.train.learner.batch import MicroBatch, pack
from rocstar.train.learner.checkpoint import CheckpointError, step_directory
from rocstar.train.learner.checkpoint_writer import CheckpointWriter, Order
from rocstar.train.learner.claims import check_folder
from rocstar.train.learner.learner import Learner
from rocstar.train.learner.optim import Optimizers, OptimSpec
from rocstar.train.learner.scratch import build_model, train_tokenizer
from rocstar.train.recipe.errors import ConfigError

from ...fakes import tiny
from ...fakes.tiny import SCRATCH, assert_same_weights, make_example
from ...patience import PATIENCE_S

ADAMW = replace(tiny.ADAMW, warmup_steps=6)
MUON = replace(ADAMW, kind="muon", weight_decay=0.0, warmup_steps=2, total_steps=8, decay_fraction=0.5)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return train_tokenizer(["print(1)"], vocab_size=300, template="{{ messages }}")


def learner(spec: OptimSpec, model: PreTrainedModel | None = None) -> Learner:
    made = Learner(model or build_model(SCRATCH, 60, seed=3))
    made.use(spec)
    return made


def micro(seed: int) -> list[MicroBatch]:
    ids = torch.randint(60, (9,), generator=torch.Generator().manual_seed(seed)).tolist()
    mask = [0, 0, 1, 1, 1, 1, 0, 1, 1]
    return pack([make_example(ids, mask, weight=1 / 7)], tokens_per_microbatch=64)


def run(made: Learner, seeds: range) -> list[float]:
    return [made.imitation_step(micro(seed)).grad_norms[0] for seed in seeds]


def order(run_dir: Path, step: int, *, keep_last: int = 99, **progress: Any) -> Order:
    return Order(run_dir=run_dir, step=step, progress=progress, keep_last=keep_last, keep_every=0)


@pytest.fixture
def write(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Save `learner` as step_N of the run at tmp_path, and wait for it."""
    with closing(CheckpointWriter()) as writer:
        writer.use_tokenizer(tokenizer)

        def save(made: Learner, step: int, **progress: Any) -> Path:
            writer.begin(order(tmp_path, step, **progress), made)
            writer.finish()
            return step_directory(tmp_path, step)

        yield save


def weights_of(made: Learner) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in made.model.named_parameters()}


@pytest.mark.parametrize("spec", [ADAMW, MUON], ids=["adamw", "muon"])
@pytest.mark.parametrize("steps_before", [0, 3])
def test_training_goes_on_bit_for_bit(write: Callable[..., Path], spec: OptimSpec, steps_before: int) -> None:
    whole = learner(spec)
    run(whole, range(steps_before))
    directory = write(whole, steps_before)
    norms = run(whole, range(steps_before, steps_before + 4))

    loaded = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    resumed = learner(spec, loaded)
    checkpoint.load_optimizer(directory, resumed)
    assert run(resumed, range(steps_before, steps_before + 4)) == norms
    assert_same_weights(resumed.model, whole.model)


def test_a_checkpoint_with_one_parameter_group_goes_on_in_the_groups_of_the_recipe(write: Callable[..., Path]) -> None:
    """Checkpoints of before norms were without decay have one; decay and betas may change at a resume."""
    one, spec = learner(ADAMW), replace(ADAMW, weight_decay=0.2, betas=(0.8, 0.9))
    together = torch.optim.AdamW(one.model.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    one._optimizers = Optimizers([together], ADAMW.rate)
    run(one, range(3))
    directory = write(one, 3)

    resumed = learner(spec, AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32))
    checkpoint.load_optimizer(directory, resumed)
    (optimizer,) = resumed.optimizers.optimizers
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.2, 0.0]
    assert [group["betas"] for group in optimizer.param_groups] == [(0.8, 0.9)] * 2
    assert {group["lr"] for group in optimizer.param_groups} == {1e-2 * ADAMW.rate(3)}
    for saved, loaded in zip(one.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(together.state[saved]["exp_avg"], optimizer.state[loaded]["exp_avg"])
        assert together.state[saved]["step"] == optimizer.state[loaded]["step"] == 3
    assert all(norm > 0 for norm in run(resumed, range(3, 5)))


@pytest.mark.parametrize("spec", [ADAMW, MUON], ids=["adamw", "muon"])
@pytest.mark.parametrize("steps_before", [0, 2])
def test_saving_changes_nothing(write: Callable[..., Path], spec: OptimSpec, steps_before: int) -> None:
    """torch makes a missing optimizer state by stepping once, which would count as Adam's first step."""
    saved, other = learner(spec), learner(spec)
    for made in (saved, other):
        run(made, range(steps_before))
        made.optimizers.zero_grad()
    write(saved, steps_before)
    assert run(saved, range(2, 5)) == run(other, range(2, 5))
    assert_same_weights(saved.model, other.model)


def test_the_directory_is_for_transformers_too(write: Callable[..., Path]) -> None:
    made = learner(ADAMW)
    run(made, range(1))
    directory = write(made, 1, note="x", cursor={"epoch": 2})
    assert check_folder(directory).tensors.keys() == weights_of(made).keys()
    loaded = AutoModelForCausalLM.from_pretrained(directory)
    ids = torch.arange(10)[None]
    assert loaded(input_ids=ids).logits.shape == (1, 10, 60)
    assert_same_weights(loaded, made.model)
    assert AutoTokenizer.from_pretrained(directory).decode([20]) is not None
    assert checkpoint.load_progress(directory) == {"note": "x", "cursor": {"epoch": 2}}
    assert made.model.config._attn_implementation == "rocstar", "the learner goes on with its own attention"


def test_who_may_read_the_folder_may_read_the_weights(
    write: Callable[..., Path], tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    """A server, or a colleague, of the group that the umask lets in."""
    made = learner(ADAMW)
    before = os.umask(0o027)
    try:
        write(made, 1)
        checkpoint.save_model(tmp_path / "cold", made.model, checkpoint.full_weights(made.model), tokenizer)
        LiveWeights(weights_of(made)).save(tmp_path / "sent")
    finally:
        os.umask(before)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sum(path.name == "model.safetensors" for path in written) == 3
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in written} == {
        path.name: oct(0o640) for path in written
    }


# ---- whole or not at all ----


@pytest.mark.parametrize("step_that_fails", ["_save_optimizer", "_save_rest", "_flush"])
@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()])
def test_a_save_that_fails_leaves_nothing(
    write: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step_that_fails: str,
    error: BaseException,
) -> None:
    made = learner(ADAMW)
    write(made, 1)

    def fail(*_: object) -> None:
        raise error

    assert callable(getattr(checkpoint, step_that_fails))
    monkeypatch.setattr(checkpoint, step_that_fails, fail)
    with pytest.raises(type(error)):
        write(made, 2)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step_1"]
    assert checkpoint.latest(tmp_path) == step_directory(tmp_path, 1)


def test_a_crash_before_the_rename_is_no_checkpoint(write: Callable[..., Path], tmp_path: Path) -> None:
    made = learner(ADAMW)
    first = write(made, 1)
    second = write(made, 2)
    second.rename(second.with_name("step_2.partial"))  # COMPLETE lies in it
    assert checkpoint.latest(tmp_path) == first
    checkpoint.prune(tmp_path, 5)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step_1"]


def folders(tmp_path: Path, *steps: int | str) -> Path:
    """Complete checkpoints of these steps."""
    for step in steps:
        (tmp_path / "checkpoints" / f"step_{step}" / "state").mkdir(parents=True)
        (tmp_path / "checkpoints" / f"step_{step}" / "COMPLETE").touch()
    return tmp_path / "checkpoints"


def test_latest_is_the_highest_complete_step(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path) is None
    (folders(tmp_path, 9, 10, 11, "x") / "step_11" / "COMPLETE").unlink()
    assert checkpoint.latest(tmp_path) == step_directory(tmp_path, 10)


@pytest.mark.parametrize(
    ("steps", "keep", "more", "left"),
    [
        ([0, 2, 9, 12], 1, {}, {0, 12}),
        ([0, 2, 9, 12], 2, {}, {0, 9, 12}),
        ([0, 2, 9, 12], 9, {}, {0, 2, 9, 12}),
        (range(0, 26, 3), 1, {"keep_every": 6, "always": 3}, {0, 3, 6, 12, 18, 24}),
    ],
)
def test_prune_keeps_the_newest_the_first_and_every_nth(
    tmp_path: Path, steps: list[int], keep: int, more: dict[str, int], left: set[int]
) -> None:
    kept = folders(tmp_path, *steps)
    checkpoint.prune(tmp_path, keep, **more)
    assert {int(path.name.removeprefix("step_")) for path in kept.iterdir()} == left


def test_saving_a_step_again_replaces_it(write: Callable[..., Path], tmp_path: Path) -> None:
    made = learner(ADAMW)
    write(made, 1, note="old")
    assert checkpoint.load_progress(write(made, 1, note="new")) == {"note": "new"}
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1


def test_no_room_is_told_before_anything_is_written(
    write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")(10**9, 10**9, 50_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(CheckpointError, match=r"0\.05 MB free, a checkpoint takes about") as refused:
        write(learner(ADAMW), 7)
    assert isinstance(refused.value, ConfigError), "exit code 2"
    assert "free some space" in str(refused.value) and "step_7" in str(refused.value)
    assert not list((tmp_path / "checkpoints").iterdir())


def test_a_failed_write_with_no_room_left_is_a_full_disk(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's writer says "unexpected pos" where the system said "no space"."""

    def fail(*_: object) -> None:
        usage = namedtuple("usage", "total used free")(10**9, 10**9, 0)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598")

    monkeypatch.setattr(checkpoint, "_save_optimizer", fail)
    with pytest.raises(CheckpointError, match="is full"):
        write(learner(ADAMW), 7)


def test_weights_that_this_user_may_not_write_are_told(write: Callable[..., Path], tmp_path: Path) -> None:
    """There is room on the disk, and still a file must not get so large."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(CheckpointError, match=r"step_7' could not be written: .*File too large"):
            write(learner(ADAMW), 7)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list((tmp_path / "checkpoints").iterdir())


# ---- beside the training ----


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """A writer stops before the first file of a write: events of its arrival and of its release."""
    reached, go_on = threading.Event(), threading.Event()
    real = checkpoint._save_optimizer

    def wait(*arguments: Any) -> None:
        reached.set()
        assert go_on.wait(PATIENCE_S)
        real(*arguments)

    monkeypatch.setattr(checkpoint, "_save_optimizer", wait)
    return reached, go_on


def test_what_is_written_is_the_state_at_the_begin(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, held: tuple[threading.Event, threading.Event]
) -> None:
    """Three more steps are made while the write waits."""
    made, (reached, go_on) = learner(ADAMW), held
    run(made, range(2))
    expected = weights_of(made)
    with closing(CheckpointWriter()) as writer:
        writer.use_tokenizer(tokenizer)
        writer.begin(order(tmp_path, 2), made)
        assert reached.wait(PATIENCE_S)
        norms = run(made, range(2, 5))
        assert checkpoint.latest(tmp_path) is None, "a checkpoint that is being written does not exist"
        go_on.set()
        writer.finish()
    directory = step_directory(tmp_path, 2)
    loaded = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    assert all(torch.equal(p, expected[n]) for n, p in loaded.named_parameters())
    resumed = learner(ADAMW, loaded)
    checkpoint.load_optimizer(directory, resumed)
    assert run(resumed, range(2, 5)) == norms


def test_the_next_checkpoint_waits_for_the_one_before(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, held: tuple[threading.Event, threading.Event]
) -> None:
    made, (reached, go_on) = learner(ADAMW), held
    with closing(CheckpointWriter()) as writer:
        writer.use_tokenizer(tokenizer)
        writer.begin(order(tmp_path, 1), made)
        assert reached.wait(PATIENCE_S)
        second = threading.Thread(target=lambda: writer.begin(order(tmp_path, 2, keep_last=1), made))
        second.start()
        assert checkpoint.latest(tmp_path) is None
        go_on.set()
        second.join(PATIENCE_S)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step_2"]


@pytest.mark.parametrize("how", ["begin", "check", "finish"])
def test_a_failed_write_is_raised_once(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    made = learner(ADAMW)
    failed = threading.Event()

    def fail(*_: object) -> None:
        failed.set()
        raise RuntimeError("broken")

    with closing(CheckpointWriter()) as writer:
        writer.use_tokenizer(tokenizer)
        monkeypatch.setattr(checkpoint, "_save_optimizer", fail)
        writer.begin(order(tmp_path, 1), made)
        assert failed.wait(PATIENCE_S)
        monkeypatch.undo()
        concurrent.futures.wait([cast(Any, writer)._writing])
        again = {"begin": lambda: writer.begin(order(tmp_path, 2), made)}.get(how, getattr(writer, how))
        with pytest.raises(RuntimeError, match="broken"):
            again()
        again()
    assert not list((tmp_path / "checkpoints").glob("*.partial"))

"""`rocstar analyse`: selection of trajectories and weights, the page, and bad input."""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rocstar.engine.record.reading import export_lines
from rocstar.train.cli import main
from rocstar.train.learner.checkpoint import full_weights, save_model
from rocstar.train.learner.scratch import build_model
from rocstar.train.reading.analysis.analyse import analyse
from rocstar.train.reading.analysis.trajectory_selection import read_chosen, resolve_source, select_trajectories
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.run_directory import COMPLETE

from ....fakes.tiny import SCRATCH
from ..view.view_runs import kept_in
from .made_trajectories import CALL, told, write_step

ANSWER = "<answer>\\boxed{1}</answer>"
ATTACK = "<script>alert(1)</script>"


def tokenizer() -> Any:
    """One that has a token for each ASCII character, whose id is the character's."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({chr(k): k for k in range(128)}, unk_token="?"))
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="?")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a tiny model, as a checkpoint has one."""
    folder = tmp_path_factory.mktemp("weights") / "model"
    model = build_model(SCRATCH, 128, seed=3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8.0)
    save_model(folder, model, full_weights(model), tokenizer())
    return folder


def trajectories(step: int = 1, tasks: int = 9, siblings: int = 3) -> list[Any]:
    made = []
    for k in range(tasks):
        for sibling in range(siblings):
            made.append(
                told(
                    (f"Let me try {k}{sibling}." + CALL, "Traceback: boom", True),
                    (f"Wait, I fix it {k}. {ATTACK}" + CALL, str(k * 37), False),
                    (f"The result is {k}: " + ANSWER, "", None),
                    task=f"task-{k}",
                    sibling=sibling,
                    step=step,
                )
            )
    made.append(told(("secret words", "", None), task="hidden", hidden=True, step=step))
    made.append(told(("lost words", "", None), task="failed", failed=True, step=step))
    return made


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, weights: Path) -> Path:
    """A run with the records of two steps and the checkpoint between them."""
    run = tmp_path_factory.mktemp("runs") / "mine"
    for step in (1, 2):
        write_step(run, step, trajectories(step))
    saved = run / "checkpoints" / "step_1"
    saved.parent.mkdir()
    saved.symlink_to(weights)
    (saved / COMPLETE).touch()
    return run


def test_the_page_and_the_object_say_the_same(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyse", str(run), "--trajectories", "20", "--json"]) == 0
    told_ = json.loads(capsys.readouterr().out)
    assert (told_["step"], told_["checkpoint_behind"], told_["trajectories"]) == (2, 0, 20)
    assert told_["tasks"] == 9
    assert set(told_["behind_responses"]) == {"any", "ok", "error"}
    assert told_["behind_responses"]["any"]["ratio"]["tokens"] == 20 * 2 * 8
    assert sum(one["of_all"] for one in told_["classes"].values()) == pytest.approx(1.0)
    assert told_["logprob_difference"]["mean"] > 0.1 and "other weights" in told_["notes"][0]
    assert told_["words"]["wait"]["behind"]["of_trajectories"]["value"] == 1.0
    assert told_["words"]["wait"]["elsewhere"]["times"] == 0
    assert Path(told_["page"]) == run / "analysis" / "step_000002.html"
    page = kept_in(Path(told_["page"]).read_text())["answers"]["article"]
    assert page["sections"][1]["list"] == told_["says"] and page["sections"][0]["notes"] == told_["notes"]
    assert "secret" not in json.dumps(page) and "lost words" not in json.dumps(page)


def test_turns_that_are_all_first_tokens_are_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every third turn answers in 43 letters; the calls are longer."""
    for window, said in ((42, 0), (43, 1)):
        assert main(["analyse", str(run), "--trajectories=9", f"--window={window}", "--json"]) == 0
        notes = [note for note in json.loads(capsys.readouterr().out)["notes"] if "first tokens" in note]
        assert len(notes) == said
    assert notes[0].startswith("9 of 27 turns have no more than the 43 first tokens")


def test_the_page_needs_nothing_and_runs_nothing_that_a_policy_wrote(run: Path) -> None:
    assert main(["analyse", str(run), "--trajectories", "9"]) == 0
    page = (run / "analysis" / "step_000002.html").read_text()
    markup, script = page.partition('<script type="application/json"')[::2]
    assert "Content-Security-Policy" in page and set(re.findall(r'(?:src|href)="(.*?)"', markup)) == {
        "data:,",
        "#main",
    }
    assert ATTACK not in page and script.count("<script>") == 1 and "first tokens after a good tool" in markup
    texts = kept_in(page)["answers"]["article"]["sections"][4]["texts"]
    assert "continues after a failing tool response" in [one["chip"] for one in texts]
    pieces = [piece for one in texts for _, block in one["blocks"] for piece in block]
    assert {shade for _, shade, _ in pieces} == {0, 1, 2, 3}
    assert ATTACK in "".join(text for text, _, _ in pieces), "readable"


def test_the_same_seed_gives_the_same_page_and_lines_give_what_columns_give(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], weights: Path
) -> None:
    (lines,) = export_lines(run / "trajectories", tmp_path, steps=[2])
    found = []
    for given in ([str(run)], [str(run)], [str(lines), f"--checkpoint={weights}"]):
        assert main(["analyse", *given, "--trajectories=12", "--seed=4", "--json"]) == 0
        told_ = json.loads(capsys.readouterr().out)
        found.append({name: told_[name] for name in ("classes", "tokens", "tasks", "says")})
    assert found[0] == found[1]
    assert found[2]["tasks"] == found[0]["tasks"]
    assert (tmp_path / "step_000002.analysis.html").is_file()


@pytest.mark.parametrize("number", [5, 9, 13, 500])
def test_the_choice_has_as_many_tasks_as_there_are(run: Path, number: int) -> None:
    file = resolve_source(run, step=1, checkpoint="x", temperature=None).file
    rows = select_trajectories(file, number, seed=0)
    counts = Counter(one.task.id for one in read_chosen(file, rows))
    assert sum(counts.values()) == min(number, 27) and not {"hidden", "failed"} & set(counts)
    assert len(counts) == min(number, 9) and max(counts.values()) - min(counts.values()) <= 1
    assert select_trajectories(file, number, seed=0) == rows


def test_the_nearest_checkpoint_is_taken_and_its_distance_told(run: Path) -> None:
    assert resolve_source(run, step=2, checkpoint=None, temperature=None).written_before == 0
    assert resolve_source(run, step=1, checkpoint=None, temperature=None).written_before == 1
    assert resolve_source(run, step=1, checkpoint="x", temperature=None).written_before is None


def test_the_attempts_of_an_evaluation_are_of_its_own_checkpoint(run: Path, tmp_path: Path) -> None:
    (lines,) = export_lines(run / "trajectories", tmp_path / "lines", steps=[1])
    attempts = run / "evaluations" / "step_1" / "attempts" / "heldout.jsonl"
    attempts.parent.mkdir(parents=True)
    lines.rename(attempts)
    (run / "config.toml").write_text('[run]\nname = "mine"\n')
    try:
        source = resolve_source(attempts, step=None, checkpoint=None, temperature=None)
    finally:
        (run / "config.toml").unlink()
    assert source.checkpoint == str(run / "checkpoints" / "step_1") and source.written_before == 0


BAD: dict[str, tuple[Callable[[Path, Path], list[str]], str]] = {
    "no run": (lambda run, empty: [str(empty)], "no trajectories of a finished step"),
    "no step": (lambda run, empty: [str(run), "--step=7"], "has no records of step 7; it has steps 1, 2"),
    "no model": (lambda run, empty: [str(run), f"--checkpoint={empty}"], "no config.json"),
    "no file of records": (
        lambda run, empty: [str(run / "checkpoints/step_1/config.json")],
        "is not a file of records",
    ),
    "whose weights": (lambda run, empty: [str(run / "trajectories/step_000001.columns")], "Pass --checkpoint"),
    "step of a file": (
        lambda run, empty: [str(run / "trajectories/step_000001.columns"), "--step=1"],
        "needs a run directory",
    ),
    "greedy": (lambda run, empty: [str(run), "--temperature=0"], "is invalid"),
    "no trajectories": (lambda run, empty: [str(run), "--trajectories=0"], "whole number, 1 or more"),
    "negative seed": (lambda run, empty: [str(run), "--seed=-1"], "whole number, 0 or more"),
    "wide window": (lambda run, empty: [str(run), "--window=65"], "1 to 64"),
    "out is a folder": (lambda run, empty: [str(run), f"--out={empty}"], "is a folder"),
    "out is there": (lambda run, empty: [str(run), f"--out={run / 'trajectories/step_000001.index'}"], "pass --force"),
    "unknown": (lambda run, empty: [str(run), "--shade=1"], "--shade"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_message_and_exit_code_2(
    name: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, reason = BAD[name]
    try:
        code: object = main(["analyse", *arguments(run, tmp_path)])
    except SystemExit as stop:  # argparse's own way
        code = stop.code
    assert code == 2
    said = capsys.readouterr()
    assert reason in said.err and "Traceback" not in said.err and not said.out


def test_a_model_of_another_vocabulary_is_refused(run: Path, tmp_path: Path, weights: Path) -> None:
    other = tmp_path / "other"
    model = build_model(SCRATCH, 60, seed=3)
    save_model(other, model, full_weights(model), tokenizer())
    source = resolve_source(run, step=2, checkpoint=str(other), temperature=None)
    with pytest.raises(ConfigError, match="the model only 60 rows"):
        analyse(source, number=4, window=8, seed=0)

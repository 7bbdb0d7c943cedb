"""Exit codes and the one line: what `main` makes of every way in which work can end."""

import errno
import importlib.metadata
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rocstar import train
from rocstar.sandbox.extras import shell_command
from rocstar.train.cli import main
from rocstar.train.recipe.errors import ConfigError, ConfigErrors
from rocstar.train.recipe.load import load_recipe
from rocstar.train.record import manifest
from rocstar.train.record.ending import guarded

from ..warm_python import warm

VERBS = ("train", "sft", "eval", "rollout", "report")


def ending(error: BaseException) -> int:
    def work() -> int:
        raise error

    return guarded(work)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigError("x = 1: too\n  small"), 2, "rocstar: x = 1: too small\n"),
        (OSError(errno.ENOSPC, "No space left", "/a/b"), 2, "disk is full at /a/b"),
        (OSError(errno.EDQUOT, "Quota"), 2, "disk is full"),
        (OSError(errno.EFBIG, "File too large"), 2, "may not grow further; raise this user's limit"),
        (OSError(errno.EROFS, "Read-only file system", "/mnt/r/report.html"), 2, "cannot write '/mnt/r/rep"),
        (PermissionError(errno.EACCES, "Permission denied", "/mnt/x"), 2, "Permission denied; give this user"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "n" * 300), 2, "cannot reach 'nnn"),
        (FileNotFoundError(errno.ENOENT, "No such file", "/gone/x.svg"), 2, "make the folder first"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_a_mistake_or_an_interruption_is_one_line(
    error: BaseException, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ending(error) == code
    printed = capsys.readouterr().err
    assert message in printed and printed.count("\n") == 1 and "--resume" not in printed


def test_every_problem_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert ending(ConfigErrors(["a = 1: too\nsmall", "b = 2: too large"])) == 2
    assert capsys.readouterr().err == "rocstar: a = 1: too small\nrocstar: b = 2: too large\n"


def test_only_a_verb_that_resumes_advises_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(lambda: 0) == 0

    def work() -> int:
        raise OSError(errno.ENOSPC, "No space left", "/a/b")

    assert guarded(work, resumes=True) == 2
    assert capsys.readouterr().err.endswith("free some space, then go on with --resume\n")


OURS = str(Path(train.__file__).parent / "recipes" / "gone.toml")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EIO, "I/O error"),
        ValueError("a bug of ours"),
        FileNotFoundError(errno.ENOENT, "No such file", OURS),
        FileNotFoundError(errno.ENOENT, "No such file", "/proc/1234567/stat"),
        PermissionError(errno.EPERM, "Operation not permitted"),
    ],
)
def test_a_bug_keeps_its_traceback(error: Exception) -> None:
    with pytest.raises(type(error)):
        ending(error)


@pytest.mark.parametrize("arguments", [["--help"], *([verb, "--help"] for verb in VERBS)])
def test_help_is_printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    assert "usage: rocstar" in capsys.readouterr().out


def test_who_stops_reading_gets_no_traceback(tmp_path: Path) -> None:
    """`rocstar train RECIPE --dry-run | head -1`"""
    read_end, write_end = os.pipe()
    os.close(read_end)
    start = [str(warm().executable), "-c", "import sys; from rocstar.train.cli import main; sys.exit(main())"]
    recipe = str(Path(__file__).parents[2] / "recipes" / "quickstart.toml")
    command = [*start, "train", recipe, "--dry-run", f"--output-dir={tmp_path / 'run'}"]
    ended = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, timeout=300, check=False)
    os.close(write_end)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_a_shipped_recipe_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = load_recipe(Path(train.__file__).parent / "recipes" / "quickstart.toml")
    monkeypatch.chdir(tmp_path)
    assert load_recipe("quickstart") == load_recipe("quickstart.toml") == shipped
    (tmp_path / "quickstart").mkdir()
    assert load_recipe("quickstart") == shipped, "a folder is no recipe"
    (tmp_path / "quickstart.toml").write_text("[run]\nname = 'mine'\n")
    assert load_recipe("quickstart.toml").run.name == "mine", "what is here comes first"


def test_a_rollout_takes_the_tasks_of_a_step_and_names_its_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import rocstar.train.evaluation.rollouts as rollouts

    limits = []

    def roll_out_file(recipe: object, model: object, *, limit: int, **_: object) -> dict[str, float]:
        limits.append(limit)
        return {"ledger/generated": 64.0, "reward/mean": 0.4375, "tool/error_share": 0.051}

    monkeypatch.setattr(rollouts, "roll_out_file", roll_out_file)
    for more in (["--rl.tasks_per_step=2"], ["--limit=3"]):
        assert main(["rollout", "quickstart", "--out=x.jsonl", *more]) == 0
        told = capsys.readouterr().out
        assert told == "wrote x.jsonl: 64 trajectories  reward 0.44  tool errors 5%\n"
    assert limits == [2, 3]


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        (["--rl.lr", "1e-3"], "lr", 1e-3),
        (["--rl.lr=1e-3"], "lr", 1e-3),
        (["--rl.roc_mode", "sort", "--rl.clip_high", "0.3"], "roc_mode", "sort"),
    ],
)
def test_a_field_takes_its_value_after_a_space_too(
    options: list[str], field: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    import rocstar.train.main as composition

    seen = []
    monkeypatch.setattr(composition, "train", lambda recipe, directory, **_: seen.append(recipe))
    for arguments in (["quickstart", *options], [*options, "quickstart"]):
        assert main(["train", *arguments, "--output-dir", "x.y"]) == 0
        assert getattr(seen[-1].rl, field) == value


def test_a_switch_takes_true_or_false(monkeypatch: pytest.MonkeyPatch) -> None:
    import rocstar.train.main as composition

    seen = []
    monkeypatch.setattr(composition, "train", lambda recipe, directory, **_: seen.append(recipe))
    assert main(["train", "quickstart", "--engine.deterministic", "false", "--rl.max_staleness", "1"]) == 0
    assert not seen[0].engine.deterministic


def test_the_version_is_that_of_the_package_and_the_commit_that_of_the_checkout(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code = main(["--version"])
    printed = capsys.readouterr().out
    assert code == 0 and printed.startswith(f"rocstar {importlib.metadata.version('rocstar')}")
    assert manifest.commit(tmp_path) is None
    if (found := manifest.commit()) is not None:
        assert f"(commit {found})" in printed


def test_help_names_every_verb_of_the_sandbox(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["sandbox", "--help"])
    verbs = re.findall(r"^    ([a-z]+)  ", capsys.readouterr().out, flags=re.M)
    named = re.search(r"sandbox\s+([a-z|]+):", printed)
    assert named and set(named[1].split("|")) == set(verbs)


def test_no_message_advises_to_install_what_is_on_no_index() -> None:
    root = Path(train.__file__).parents[1]
    files = [p for f in ("engine", "kernels", "sandbox", "train") for p in (root / f).rglob("*.py")]
    advice = re.compile(r"pip install\s+['\"]?rocstar")
    assert len(files) > 100 and [str(p) for p in files if advice.search(p.read_text())] == []


def test_ctrl_c_is_told_as_fits_the_verb() -> None:
    """Of verbs that leave nothing to resume: a real SIGINT in a child, once it says that it works."""
    program = (
        "import sys, time, rocstar.train.evaluation.saved_model as alone\n"
        "def work(*_, **__):\n    print('working', flush=True)\n    time.sleep(600)\n"
        "alone.evaluate_model = work\n"
        "from rocstar.train.cli import main\nsys.exit(main())"
    )
    with subprocess.Popen(
        [str(warm().executable), "-c", program, "eval", "quickstart"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == "working\n"
        child.send_signal(signal.SIGINT)
        _, messages = child.communicate(timeout=300)
    assert (child.returncode, messages) == (130, "interrupted\n")


def test_sft_alone_has_no_stages_but_the_evaluation_limits_of_the_last(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import rocstar.train.main as composition

    seen = []
    monkeypatch.setattr(composition, "train", lambda recipe, directory, **_: seen.append((recipe, directory)))
    assert main(["sft", "recipes/quickstart.toml", "--output-dir=x", "--run.seed=5"]) == 0
    recipe, directory = seen[0]
    assert recipe.stages == [] and recipe.run.seed == 5 and str(directory) == "x"
    last, limits = load_recipe("recipes/quickstart.toml").stages[-1], recipe.eval[0]
    assert limits.max_response_tokens == last.max_response_tokens, "a model from nothing has no room for more"
    assert limits.max_turns == last.max_turns
    view = shell_command("view", "x")
    assert capsys.readouterr().out == f"report: x/report.html\nlook into it: {view}\n"


def test_a_folder_that_this_user_may_not_enter_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every look into it is refused, also the one that would tell why. Played, for root is not refused."""
    closed = str(tmp_path / "closed")
    access, stat = os.access, os.stat

    def refuses(path: object, *arguments: object, **options: object) -> object:
        if str(path).startswith(f"{closed}/"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, *arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "stat", refuses)
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != closed and access(path, mode))
    for verb in (["report"], ["doctor"], ["export", "--out", str(tmp_path / "out")], ["replay", "--step", "1"]):
        assert main([*verb, f"{closed}/run"]) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"rocstar: cannot reach '{closed}/run") and told.count("\n") == 1, told
        assert "Permission denied; give this user the right to it" in told


def test_the_printed_command_runs_in_the_shell_of_the_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name if the path leads to it, else by its place."""
    folders = [tmp_path / name / "bin" for name in ("my env", "other")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "rocstar").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(folders[0] / "python"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, folders)))
    assert shell_command("view", Path("my run")) == "rocstar view 'my run'"
    for path in ("/usr/bin", str(folders[1])):
        monkeypatch.setenv("PATH", path)
        assert shell_command() == "'my env/bin/rocstar'"
    monkeypatch.setenv("HF_HOME", "my hub")
    monkeypatch.setenv("WANDB_MODE", "")
    assert shell_command(variables=["HF_HOME", "WANDB_MODE"]) == "HF_HOME='my hub' 'my env/bin/rocstar'"
    monkeypatch.chdir("my env/bin")
    assert shell_command() == "./rocstar"
    monkeypatch.chdir(tmp_path / "other")
    assert shell_command() == f"'{tmp_path}/my env/bin/rocstar'"
    (folders[0] / "rocstar").unlink()
    assert shell_command() == "rocstar", "no script was installed"
    monkeypatch.setattr(sys, "argv", [str(folders[1] / "rocstar")])
    assert shell_command() == "rocstar", "it was started by its name"
    monkeypatch.setenv("PATH", "/usr/bin")
    assert shell_command() == "bin/rocstar"

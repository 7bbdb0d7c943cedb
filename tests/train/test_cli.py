"""Exit codes and the one line: what `main` makes of every way in which work can end."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rocstar.train import cli
from rocstar.train.cli import _without_stages, main
from rocstar.train.config import ConfigError, ConfigErrors, load_recipe
from rocstar.train.ending import guarded

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
        (OSError(errno.EROFS, "Read-only file system", "/mnt/r/report.html"), 2, "cannot write '/mnt/r/rep"),
        (
            PermissionError(errno.EACCES, "Permission denied", "/mnt/x"),
            2,
            "Permission denied; give this user",
        ),
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
    def work() -> int:
        raise OSError(errno.ENOSPC, "No space left", "/a/b")

    assert guarded(work, resumes=True) == 2
    assert capsys.readouterr().err.endswith("free some space, then go on with --resume\n")


OURS = str(Path(cli.__file__).parent / "recipes" / "gone.toml")


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


def test_done_is_zero() -> None:
    assert guarded(lambda: 0) == 0


@pytest.mark.parametrize("arguments", [["--help"], *([verb, "--help"] for verb in VERBS)])
def test_help_is_printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    assert "usage: rocstar" in capsys.readouterr().out


def test_a_refused_recipe_imports_no_torch() -> None:
    program = (
        "import sys; from rocstar.train.cli import main; "
        "code = main(['train', 'gone.toml']); sys.exit(code if 'torch' not in sys.modules else 99)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 2 and result.stderr.startswith("rocstar: recipe 'gone.toml'")


def test_who_stops_reading_gets_no_traceback() -> None:
    """`rocstar train RECIPE --dry-run | head -1`"""
    read_end, write_end = os.pipe()
    os.close(read_end)
    start = "import sys; from rocstar.train.cli import main; sys.exit(main())"
    recipe = str(Path(__file__).parents[2] / "recipes" / "quickstart.toml")
    command = [sys.executable, "-c", start, "train", recipe, "--dry-run"]
    ended = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, timeout=120, check=False)
    os.close(write_end)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_sft_alone_has_no_stages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import rocstar.train.main as composition

    seen = []
    monkeypatch.setattr(composition, "train", lambda recipe, directory, **_: seen.append((recipe, directory)))
    assert main(["sft", "recipes/quickstart.toml", "--output-dir=x", "--run.seed=5"]) == 0
    recipe, directory = seen[0]
    assert recipe.stages == [] and recipe.run.seed == 5 and str(directory) == "x"
    assert capsys.readouterr().out == "report: x/report.html\n"


def test_the_cold_start_alone_is_evaluated_within_the_last_stages_limits() -> None:
    """A model from nothing has no room for more."""
    recipe = load_recipe("recipes/quickstart.toml")
    alone = _without_stages(recipe)
    last = recipe.stages[-1]
    assert alone.stages == [] and alone.sft == recipe.sft
    assert (alone.eval.max_response_tokens, alone.eval.max_turns) == (
        last.max_response_tokens,
        last.max_turns,
    )

"""The file of a build is checked whole, before anything is read, and without torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from rocstar.train.cli import main
from rocstar.train.data.build_config import BUILDS, forbids_commercial_use, load_build

WRONG = """
kind = "tasks"

[[sources]]
name = "a"
source = "hub:owner/name"
licence = ""

[[sources]]
name = "a"
source = "missing.jsonl"
licence = "mit"

[overlap]
against = ["nowhere.jsonl"]

[conversations]
templates = ["rstar2"]
"""


def test_all_errors_are_reported_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "build.toml"
    path.write_text(WRONG)
    assert main(["data", "build", str(path), "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr().err.splitlines()
    expected = (
        "2 sources are called 'a'",
        "revision is missing",
        "licence is empty",
        "missing.jsonl' does not exist",
        "nowhere.jsonl' does not exist",
        "[conversations] is not of kind = 'tasks'",
    )
    assert len(printed) == len(expected) and all(any(words in line for line in printed) for words in expected)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('kind = "task"\nsources = []', ("kind = 'task'", "sources")),
        (
            'kind = "tasks"\n[[sources]]\nnmae = "a"\nsource = "x"\nlicence = "mit"',
            ("did you mean 'sources.0.name'", "name is missing"),
        ),
        ('kind = "tasks"\n[[sources]]\nname = "a b"\nsource = "x"\nlicence = "mit"', ("sources.0.name = 'a b'",)),
        (
            'kind = "tasks"\n[difficulty]\nrollouts = []\neasy_above = 2',
            ("rollouts", "easy_above", "sources is missing"),
        ),
        ("kind = ", ("not valid TOML",)),
    ],
)
def test_a_field_is_named_with_its_value_and_the_fix(
    tmp_path: Path, text: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "build.toml"
    path.write_text(text)
    assert main(["data", "build", str(path), "--dry-run"]) == 2
    printed = capsys.readouterr().err
    assert all(word in printed for word in words), printed


def test_a_dry_run_says_what_would_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "q?", "answer": 1}\n')
    path = tmp_path / "build.toml"
    path.write_text('kind = "tasks"\n[[sources]]\nname = "a"\nsource = "rows.jsonl"\nlicence = "mit"\n')
    assert main(["data", "build", str(path), "--dry-run"]) == 0
    assert "a: rows.jsonl, mit; local files" in capsys.readouterr().out
    assert main(["data", "build", str(path)]) == 2 and "--out is missing" in capsys.readouterr().err
    assert main(["data", "build", "no_such_build"]) == 2 and "rstar2" in capsys.readouterr().err
    assert sorted(one.name for one in tmp_path.iterdir()) == ["build.toml", "rows.jsonl"]


@pytest.mark.parametrize("name", sorted(path.stem for path in BUILDS.glob("*.toml")))
def test_a_shipped_file_is_right_but_for_what_a_user_brings(name: str) -> None:
    config = load_build(Path(name))
    assert all(source.source.startswith("hub:") and source.licence for source in config.sources)


def test_a_shipped_mixture_has_a_commercial_part() -> None:
    config = load_build(Path("rstar2_sft"), commercial=True)
    refused = [source.name for source in config.sources if forbids_commercial_use(source.licence)]
    assert refused == ["apigen_mt"]


def test_nothing_here_needs_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from rocstar.train.cli import main; main(['data', 'build', 'rstar2_sft', '--dry-run']);"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("licence", "allowed"),
    [
        ("apache-2.0", True),
        ("Apache-2.0", True),
        ("CC BY 4.0", True),
        ("odc-by", True),
        ("cc-by-nc-4.0", False),
        ("CC BY-NC-SA 4.0", False),
        ("other", False),
        ("", False),
    ],
)
def test_only_known_licences_allow_commercial_use(licence: str, allowed: bool) -> None:
    assert (forbids_commercial_use(licence) is None) == allowed

"""What a person gives by mistake, verb by verb: exit code 2, one message, nothing written.

A table of verbs that take a path, and of paths that are no use to any of them. `main` returns instead of
raising, so a traceback would fail the test by itself.
"""

import io
import os
import re
import shlex
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from rocstar.sandbox.command_line import closest
from rocstar.train.cli import dispatch, main

VERBS: dict[str, Sequence[str]] = {
    "train": ("train", "PATH", "--output-dir", "out"),
    "dry run": ("train", "PATH", "--output-dir", "out", "--dry-run"),
    "resume": ("train", "quickstart", "--output-dir", "PATH", "--resume"),
    "sft": ("sft", "PATH", "--output-dir", "out"),
    "eval": ("eval", "PATH"),
    "rescore": ("eval", "--rescore", "PATH"),
    "verify": ("eval", "--verify", "PATH"),
    "rollout": ("rollout", "PATH", "--out", "out.jsonl"),
    "serve": ("serve", "PATH", "--port", "0", "--no-records"),
    "chat": ("chat", "PATH", "--prompt", "Hello"),
    "report": ("report", "PATH"),
    "view": ("view", "PATH", "--export", "out.html"),
    "compare": ("compare", "PATH", "PATH"),
    "replay": ("replay", "PATH", "--step", "1"),
    "analyse": ("analyse", "PATH"),
    "records": ("records", "PATH", "--out", "out"),
    "doctor": ("doctor", "PATH"),
    "export": ("export", "PATH", "--out", "out"),
    "data build": ("data", "build", "PATH", "--out", "out"),
    "data check": ("data", "check", "PATH", "--against", "PATH", "--out", "out.jsonl"),
    "data show": ("data", "show", "PATH"),
    "grade": ("grade", "PATH"),
    "import-gguf": ("import-gguf", "PATH", "out"),
    "sim": ("sim", "PATH", "--policies", "static"),
    "sandbox run": ("sandbox", "run", "PATH"),
    "sandbox serve": ("sandbox", "serve", "--port", "0", "--token-file", "PATH"),
    "sandbox worker": ("sandbox", "worker", "--redis-file", "PATH"),
}


def places(folder: Path) -> dict[str, str]:
    """Paths that are no use, with a blank and an umlaut, as people have them."""
    (folder / "an empty földer").mkdir()
    os.symlink("loop b", folder / "loop a")
    os.symlink("loop a", folder / "loop b")
    return {
        "missing": "./not there/ä.toml",
        "a folder": "an empty földer",
        "a loop of links": "loop a",
        "a name beyond the file system's": "./" + "n" * 300,
        "behind a file": "a file/x",
    }


FILES = {
    "a folder/x": "",
    "model/config.json": "{}",
    "rows.jsonl": '{"question": "1+1?", "answer": "2"}\n',
    "broken.toml": "[rl\n",
}


def below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("verb", VERBS)
def test_a_path_that_is_no_use_is_one_message(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a file").write_bytes(b"gro\xdf\n")
    for what, path in places(tmp_path).items():
        before = below(tmp_path)
        code = main([path if word == "PATH" else word for word in VERBS[verb]])
        printed = capsys.readouterr()
        assert (code, printed.out) == (2, ""), (what, printed)
        lines = [line for line in printed.err.splitlines() if not line.startswith("importing torch: ")]
        assert len(lines) == 1 and lines[0].startswith("rocstar"), (what, printed.err)
        assert below(tmp_path) == before, f"{what}: something was written"


LISTED = [
    tuple(entry.removeprefix("$ rocstar ").split("\n", 1))
    for entry in Path(__file__).with_name("wrong_inputs.txt").read_text(encoding="utf-8").split("\n\n")[1:]
]
"""Pairs of arguments and message."""


def run_listed(line: str, told: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """Run a command of the list. Return its exit code, and its messages with the words of the list."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        try:
            code = main(shlex.split(line.replace("PORT", port)))
        except SystemExit as ended:
            code = int(ended.code or 0)
    printed = capsys.readouterr().err.replace(str(folder), "FOLDER").replace(f":{port}", ":PORT")
    lines = [line for line in printed.splitlines() if not line.startswith("importing torch: ")]
    if told.startswith("... "):
        lines = ["... " + told[4:] if line.endswith(told[4:]) else line for line in lines]
    return code, lines


@pytest.mark.parametrize(("line", "told"), LISTED, ids=[line for line, _ in LISTED])
def test_a_listed_input_has_its_message(
    line: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    for name, text in FILES.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    before, told = below(tmp_path), told.strip()
    assert run_listed(line, told, tmp_path, capsys) == (2, [told])
    if line.startswith("train quickstart "):
        assert run_listed(f"{line} --dry-run", told, tmp_path, capsys) == (2, [told]), "as the start"
    assert below(tmp_path) == before, "something was written"


def test_every_input_is_listed_once() -> None:
    assert len({line for line, _ in LISTED}) == len(LISTED)
    assert not any("Traceback" in told or "\n" in told.strip() for _, told in LISTED)


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("trian", ("train", "trace"), "train"),
        ("GROUPSIZE", ("group_size", "tasks_per_step"), "group_size"),
        ("gdc", ("gcd", "lcm"), "gcd"),
        ("gpqa", ("gpqa_diamond", "gsm8k"), "gpqa_diamond"),
        ("clip_eps", ("roc_eps", "clip_low", "clip_high"), ""),
        ("max_tokens", ("max_turns",), ""),
        ("keep_first", ("keep_last",), ""),
        ("float8", ("float32", "bfloat16"), ""),
        ("aime", ("aime24", "aime25"), ""),
        ("nope", ("group_size", "name"), ""),
        ("", ("a",), ""),
    ],
)
def test_only_a_typing_error_is_corrected(name: str, known: Sequence[str], meant: str) -> None:
    assert closest(name, known) == meant


def test_without_arguments_the_verbs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert sum("rocstar " in line for line in lines if line.startswith("  ")) == 5, printed
    for verb in [*(verb.name for verb in dispatch.VERBS), *dispatch.OWN_PARSERS]:
        assert [line for line in lines if re.match(rf"    {verb} +\w.*", line)], printed


def test_rows_and_recipes_may_begin_with_a_byte_order_mark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, build = tmp_path / "röws.jsonl", tmp_path / "büild.toml"
    row = b'{"question": "What is 6 * 7?", "answer": "42"}\r\n'
    rows.write_bytes(b"\xef\xbb\xbf" + row)
    text = 'kind = "tasks"\r\n[[sources]]\r\nname = "a"\r\nsource = "röws.jsonl"\r\nlicence = "mit"\r\n'
    build.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert main(["data", "build", str(build), "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().err == ""
    assert "What is 6 * 7?" in (tmp_path / "out" / "tasks.jsonl").read_text(encoding="utf-8")

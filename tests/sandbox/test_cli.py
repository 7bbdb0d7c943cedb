"""`rocstar sandbox run` and `doctor`, as a shell sees them."""

import io
import json
import sys

import pytest

from rocstar.sandbox import cli

from .conftest import ProgramFile


def test_run_shows_output_and_value(program: ProgramFile, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", program("print('out')\n1 + 1")]) == 0
    assert capsys.readouterr() == ("out\n2\n", "")


def test_a_byte_order_mark_is_no_part_of_a_program(program: ProgramFile, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", program("\ufeffprint('out')\r\n")]) == 0
    assert capsys.readouterr() == ("out\n", "")


@pytest.mark.parametrize(
    ("code", "options", "status", "message"),
    [
        ("import sys; sys.exit(3)", [], 3, "rocstar sandbox: error after"),
        ("1 / 0", [], 1, "ZeroDivisionError"),
        ("while True: pass", ["--wall-s", "0.1"], 137, "rocstar sandbox: timeout after"),
        ("bytearray(1 << 30)", ["--memory-bytes", "100000000"], 86, "rocstar sandbox: memory_limit"),
        ("print('x' * 2_000_000)", [], 0, "rocstar sandbox: stdout was truncated"),
    ],
)
def test_run_exits_as_the_program_did(
    program: ProgramFile, capsys: pytest.CaptureFixture[str], code: str, options: list[str], status: int, message: str
) -> None:
    assert cli.main(["run", program(code), *options]) == status
    assert message in capsys.readouterr().err


def test_run_reads_standard_input_and_prints_json(
    program: ProgramFile, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"import random; random.random(), input()")))
    data = program("line")
    assert cli.main(["run", "-", "--json", "--seed", "1", "--stdin", data]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["status"], result["value"]) == ("ok", "(0.13436424411240122, 'line')")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "/no/such/file"], "cannot read /no/such/file: No such file or directory. Pass a file, or -"),
        (["run", "FILE", "--stdin", "/no/such/file"], "cannot read /no/such/file"),
        (["run", "FILE", "--wall-s", "-1"], "--wall-s is -1.0. Pass 0.001 to 86400.0"),
        (["run", "FILE", "--wall-s", "nan"], "--wall-s is nan. Pass 0.001 to 86400.0"),
        (["run", "FILE", "--wall-s", "inf"], "--wall-s is inf. Pass 0.001 to 86400.0"),
        (["run", "FILE", "--memory-bytes", "5"], "--memory-bytes is 5. Pass 1048576 to 70368744177664"),
        (["run", "FILE", "--seed", "-1"], "seed is -1"),
    ],
)
def test_a_mistake_is_one_line_and_exits_2(
    program: ProgramFile, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    path = program("1")
    assert cli.main([path if argument == "FILE" else argument for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("rocstar sandbox: ") and message in error and error.count("\n") == 1


@pytest.mark.parametrize("options", [["--flavour", "ruby"], ["--wall-s", "soon"]])
def test_a_wrong_option_names_the_value(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["run", "x", *options])
    error = capsys.readouterr().err
    assert (stop.value.code, options[0] in error, options[1] in error) == (2, True, True)


def test_an_unknown_verb_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["nope"])
    assert stop.value.code == 2
    assert "verb 'nope' is not known" in capsys.readouterr().err

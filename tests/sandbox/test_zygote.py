"""The parts of the zygote and of the cell runner that can be tried without forking."""

import io
import json
import os
import sys
from pathlib import Path

import pytest

from rocstar.sandbox import cell, wire, zygote
from rocstar.sandbox.flavours import FLAVOURS, Flavour


@pytest.fixture
def error_stream(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "__stderr__", stream)
    return stream


@pytest.fixture
def value_pipe(monkeypatch: pytest.MonkeyPatch) -> int:
    read_end, write_end = os.pipe()
    monkeypatch.setattr(cell, "VALUE_FD", write_end)
    return read_end


def test_a_source_runs_like_a_cell(value_pipe: int, error_stream: io.StringIO) -> None:
    assert cell.run_source(b"x = 2\nx * 21") == 0
    assert os.read(value_pipe, 10) == b"42"
    os.close(value_pipe)
    os.close(cell.VALUE_FD)


@pytest.mark.parametrize(
    ("source", "exit_code", "stderr"),
    [
        (b"x = 1", 0, ""),
        (b"1;", 0, ""),
        (b"raise SystemExit", 0, ""),
        (b"raise SystemExit(300)", 44, ""),
        (b"raise SystemExit('why')", 1, "why\n"),
        (b"raise MemoryError", cell.MEMORY_EXIT, "MemoryError\n"),
        (b"raise KeyboardInterrupt", 1, "KeyboardInterrupt\n"),
        (b"(", 1, "SyntaxError: '(' was never closed\n"),
        (b"raise ExceptionGroup('g', [ValueError(1)])", 1, "ValueError: 1\n"),
    ],
)
def test_exit_codes_and_reports(
    error_stream: io.StringIO, source: bytes, exit_code: int, stderr: str
) -> None:
    assert cell.run_source(source) == exit_code
    assert stderr in error_stream.getvalue()
    assert "sandbox/cell.py" not in error_stream.getvalue()


def test_no_memory_left_even_for_the_report(
    monkeypatch: pytest.MonkeyPatch, error_stream: io.StringIO
) -> None:
    def no_memory(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(cell, "keep_cell_frames", no_memory)
    assert cell.run_source(b"raise MemoryError") == cell.MEMORY_EXIT
    assert error_stream.getvalue() == "MemoryError\n"


def test_seeding_reaches_every_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    import random

    import numpy.random
    import sympy.core.random as sympy_random

    states = random.getstate(), numpy.random.get_state(), sympy_random.rng.getstate()
    try:
        draws = []
        for seed in (5, 5, 6):
            cell.reseed(seed)
            draws.append((random.random(), numpy.random.rand(), sympy_random.rng.random()))
        assert draws[0] == draws[1]
        assert all(a != b for a, b in zip(draws[0], draws[2], strict=True))
        assert draws[0][0] == random.Random(5).random()
    finally:
        random.setstate(states[0])
        numpy.random.set_state(states[1])
        sympy_random.rng.setstate(states[2])


def test_a_parent_that_is_gone_ends_the_zygote_at_once() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zygote._native, "die_with_parent", lambda parent: False)
        assert zygote.main(["--flavour=stdlib", "--fd=1", "--parent=1", "--max-live=1"]) == 0


def test_a_missing_import_is_said_on_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Flavour(
        name="broken", modules=("module_that_is_not_there",), warm_up="", install="pip install it"
    )
    monkeypatch.setitem(FLAVOURS, "broken", broken)
    monkeypatch.setattr(zygote._native, "die_with_parent", lambda parent: True)
    read_end, write_end = os.pipe()
    try:
        assert zygote.main(["--flavour=broken", f"--fd={write_end}", "--parent=1", "--max-live=1"]) == 3
        [frame] = wire.FrameBuffer().feed(os.read(read_end, 10_000))
    finally:
        os.close(read_end)
        os.close(write_end)
    assert frame.type == wire.FATAL
    fatal = json.loads(frame.payload)
    assert fatal["kind"] == "missing_import"
    assert "module_that_is_not_there" in fatal["message"] and "pip install it" in fatal["message"]


def test_layers_are_those_that_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zygote, "can_change_uid", lambda: True)
    monkeypatch.setattr(zygote, "is_world_readable", lambda path: True)
    monkeypatch.setattr(
        zygote._native, "probe", lambda: dict(kernel="", machine="", seccomp=True, landlock_abi=3)
    )
    assert zygote.choose_layers(frozenset()).names == "nnp+rlimits+landlock+seccomp+uid"
    assert zygote.choose_layers(frozenset({"landlock", "uid"})).names == "nnp+rlimits+seccomp"
    monkeypatch.setattr(
        zygote._native, "probe", lambda: dict(kernel="", machine="", seccomp=False, landlock_abi=0)
    )
    assert zygote.choose_layers(frozenset({"uid"})).names == "nnp+rlimits"


def test_world_readable_means_every_folder_above_too(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    for path in (tmp_path, *tmp_path.parents):
        if not path.stat().st_mode & 0o001:
            path.chmod(path.stat().st_mode | 0o001)
    assert zygote.is_world_readable(str(folder))
    folder.parent.chmod(0o700)
    assert not zygote.is_world_readable(str(folder))
    folder.parent.chmod(0o755)
    folder.chmod(0o711)
    assert not zygote.is_world_readable(str(folder))


def test_python_paths_hold_the_standard_library() -> None:
    paths = zygote.python_paths()
    assert any(os.path.realpath(json.__file__).startswith(path + "/") for path in paths)
    assert all(os.path.isdir(path) for path in paths)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may change its uid")
def test_an_ordinary_user_cannot_change_uid() -> None:
    assert not zygote.can_change_uid()


@pytest.mark.parametrize("flavour", FLAVOURS.values(), ids=lambda flavour: flavour.name)
def test_a_flavour_warms_up_quietly(flavour: Flavour, capsys: pytest.CaptureFixture[str]) -> None:
    zygote.preload(flavour)
    assert capsys.readouterr() == ("", "")

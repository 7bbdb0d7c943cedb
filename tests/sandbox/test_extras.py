"""What is said of a part that is not installed."""

import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocstar.sandbox import cli, extras
from rocstar.sandbox.extras import pip_command

METADATA = [
    "aiohttp<4,>=3.11",
    'torch<2.14,>=2.11; extra == "train"',
    'rocstar[numeric,sim]; extra == "train"',
    'numpy<3,>=2.0; extra == "numeric"',
    'math-verify[antlr4_13_2]<0.10,>=0.8; extra == "train"',
    'rich; extra == "sim"',
    "triton; platform_system == 'Linux' and extra == 'dev'",
]


def install(monkeypatch: pytest.MonkeyPatch, *names: str, noted: Mapping[str, Any] | None = None) -> None:
    """A rocstar of METADATA beside distributions of these names; `noted`: what pip says it came from."""

    def distribution(name: str) -> Any:
        if name not in (*names, "rocstar"):
            raise importlib.metadata.PackageNotFoundError(name)
        return SimpleNamespace(read_text=lambda _: json.dumps(noted) if noted else None)

    monkeypatch.setattr(importlib.metadata, "requires", lambda _: METADATA)
    monkeypatch.setattr(importlib.metadata, "distribution", distribution)


def test_an_extra_asks_for_all_that_is_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    assert extras.requirements("train") == ["torch", "numpy", "rich", "math-verify"]
    assert extras.requirements("dev") == ["triton"]
    assert extras.requirements("nothing") == []


def test_the_first_thing_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "numpy")
    assert extras.missing_extra_message("rocstar train", "train") == (
        f"rocstar train needs torch: {pip_command('rocstar[train]')}"
    )
    assert extras.missing_extra_message("rocstar x", "numeric") == ""
    install(monkeypatch, "torch", "numpy", "rich", "math-verify")
    assert extras.missing_extra_message("rocstar train", "train") == ""


def test_the_command_installs_from_where_rocstar_came(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel = tmp_path / "a b.whl"
    wheel.touch()
    install(monkeypatch, noted={"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    assert extras.install_command("fabric") == pip_command("-e", f"{tmp_path}[fabric]")
    install(monkeypatch, noted={"url": wheel.as_uri(), "archive_info": {}})
    assert extras.install_command("fabric") == pip_command(f"{wheel}[fabric]")
    wheel.unlink()
    assert extras.install_command("fabric") == pip_command("rocstar[fabric]")


def test_a_rocstar_that_is_not_installed_lacks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert extras.missing_extra_message("rocstar train", "train") == ""
    assert extras.install_command("train") == pip_command("rocstar[train]")


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name in names else object())
    extras.installed_flavours.cache_clear()


@pytest.fixture(autouse=True)
def _told_anew() -> Any:
    yield
    extras.installed_flavours.cache_clear()


def test_a_flavour_without_its_packages_is_left_out_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "scipy")
    assert extras.installed_flavours() == ("stdlib", "numeric", "verifier", "cpp", "bash")
    line, _ = extras.left_out()  # of plot as well
    assert line == "flavour scientific is left out: it needs scipy: pip install numpy sympy scipy"
    assert extras.left_out(["stdlib", "numeric"]) == []
    assert "bash" not in extras.offered_flavours(), "who wants a shell says so"


def test_a_program_that_wants_a_missing_flavour_runs_without_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    without(monkeypatch, "numpy", "sympy", "scipy", "mpmath")
    program = tmp_path / "program.py"
    program.write_text("print(6 * 7)\nif 0: import numpy\n")
    assert cli.main(["run", str(program)]) == 0
    said = capsys.readouterr()
    assert said.out == "42\n"
    assert said.err.startswith("rocstar sandbox run: flavour numeric is left out: it needs mpmath, numpy, sympy")


def test_the_doctor_tells_the_flavours(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "scipy")
    assert cli.main(["doctor"]) == 0
    assert "flavours    stdlib, numeric, verifier, cpp, bash\n" in (said := capsys.readouterr().out)
    assert "flavour scientific is left out: it needs scipy" in said

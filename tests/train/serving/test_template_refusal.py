"""A template that cannot carry a tool conversation is refused before any work, with the difference."""

from pathlib import Path

import pytest

from rocstar.train.cli import main

TEMPLATES = Path(__file__).parents[2] / "engine" / "templates"


def refuse(
    template: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, str]:
    out = tmp_path / "out"
    arguments = ["train", "recipes/quickstart.toml", f"--model.template={TEMPLATES / template}"]
    code = main([*arguments, f"--output-dir={out}", *options])
    assert not out.exists(), "nothing is written before the recipe is accepted"
    return code, capsys.readouterr().err


def test_template_that_strips_thinking_ends_with_2_and_the_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = refuse("qwen3.jinja", tmp_path, capsys)
    assert code == 2 and "Traceback" not in told
    assert told.startswith(
        f"rocstar: model.template = '{TEMPLATES / 'qwen3.jinja'}': the chat template changes"
    )
    assert {"--- expected", "+++ rendered", "-<think>", "-</think>"} <= set(told.splitlines())
    assert "thinking = 'keep'" in told


def test_template_that_shows_no_tools_is_refused_whatever_the_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = refuse("smollm2.jinja", tmp_path, capsys, "--model.thinking=keep")
    assert code == 2 and "ignores tools: use a bundled template" in told

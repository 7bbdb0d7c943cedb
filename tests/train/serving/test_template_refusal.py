"""A template that cannot carry a tool conversation is refused before any work, with the difference."""

from pathlib import Path

import pytest

from rocstar.train.cli import main

TEMPLATES = Path(__file__).parents[2] / "engine" / "templates"


@pytest.mark.parametrize(
    ("template", "options", "words"),
    [
        ("qwen3.jinja", [], ["--- expected", "+++ rendered", "-<think>", "-</think>", "thinking = 'keep'"]),
        ("smollm2.jinja", ["--model.thinking=keep"], ["ignores tools: use a bundled template"]),
    ],
)
def test_a_template_that_loses_text_ends_with_2_and_the_difference(
    template: str, options: list[str], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = TEMPLATES / template, tmp_path / "out"
    arguments = ["train", "recipes/quickstart.toml", f"--model.template={path}", f"--output-dir={out}"]
    assert main([*arguments, *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"rocstar: model.template = '{path}': the chat template ")
    assert all(one in error for one in words) and "Traceback" not in error
    assert not out.exists(), "nothing is written before the recipe is accepted"

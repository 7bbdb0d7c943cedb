"""examples/own_loop.py and the built-in loop: the same bits."""

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

from rocstar.train import load_recipe, train
from tests.fakes.json_lines import read_folder

from ..kept_pool import kept_pools

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_loop.py"
STEPS = 10
OPTIONS = ("--engine.deterministic=true", "--checkpoint.every=0", "--sft.steps=30")


def own_loop() -> Any:
    spec = importlib.util.spec_from_file_location("own_loop", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.loop


def one_stage(workshop: Any) -> Path:
    """The coin toss with its first stage alone."""
    first, _, rest = workshop.recipe.read_text().partition('[[stages]]\nname = "two"')
    path: Path = workshop.directory / "one_stage.toml"
    path.write_text(first + "[[eval]]" + rest.partition("[[eval]]")[2])
    return path


def run(recipe: Path, folder: Path, steps: int, **options: Any) -> Path:
    made = load_recipe(recipe, [*OPTIONS, f"--stages.0.steps={steps}"])
    with kept_pools():
        asyncio.run(train(made, folder, **options))
    return folder


def weights(folder: Path) -> bytes:
    return (folder / "checkpoints" / f"step_{STEPS}" / "model.safetensors").read_bytes()


def records(folder: Path) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in one.items() if name != "times"} for one in read_folder(folder / "trajectories")
    ]


def test_a_loop_of_ones_own_has_the_bits_of_the_built_in_loop(workshop: Any, tmp_path: Path) -> None:
    recipe = one_stage(workshop)
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 60
    expected, loop = run(recipe, tmp_path / "built_in", STEPS), own_loop()
    found = run(recipe, tmp_path / "own", STEPS, loop=loop)
    assert weights(found) == weights(expected) != (found / "checkpoints/step_0/model.safetensors").read_bytes()
    assert records(found) == records(expected)
    begun = run(recipe, tmp_path / "resumed", 4, loop=loop)
    assert weights(run(recipe, begun, STEPS, loop=loop, resume=True)) == weights(expected)

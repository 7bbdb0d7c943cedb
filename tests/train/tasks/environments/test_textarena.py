"""Games of textarena against a fake of its calls, which its real games have (GuessTheNumber-v0, textarena 0.7.4)."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from rocstar.engine.types import Scored
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import load_recipe
from rocstar.train.tasks.environments.kinds import environments_of
from tests.train.tasks.environments.attempts import attempt, call


class FakeGame:
    """Is won by "[7]"; its observations repeat all before."""

    def reset(self, num_players: int, seed: int) -> None:
        if num_players != self.players:
            raise AssertionError(f"The number of players has to be {self.players}")
        self.text, self.won = f"Rules of {seed % 2}.", False

    def __init__(self, players: int) -> None:
        self.players = players

    def get_observation(self) -> tuple[int, str]:
        return 0, self.text

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        self.won = action == "[7]"
        self.text += f"\n[Player] {action}\n[GAME] no"
        return self.won, {}

    def close(self) -> tuple[dict[int, float], dict[str, Any]]:
        return {0: 1.0}, {}


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    games = {"one": 1, "two": 2}
    monkeypatch.setitem(sys.modules, "textarena", SimpleNamespace(make=lambda name: FakeGame(games[name])))


async def test_a_game_is_played_until_it_is_over() -> None:
    recipe = load_recipe({"environments": [{"kind": "textarena", "args": {"game": "one"}}]})
    t = await attempt([call("act", text="[3]"), call("act", text="[7]"), "not asked"], recipe, row={"seed": 3})
    assert [result.text for result in t.results] == ["[Player] [3]\n[GAME] no", "The game is over."]
    assert t.outcome == Scored(reward=1.0, method="program", is_correct=True) and len(t.turns) == 2
    t = await attempt(["done"], recipe, row={})
    assert t.outcome == Scored(reward=0.0, method="program", is_correct=False)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"game": "two"}, "args.game = 'two' cannot be played by one player: The number of players has to be 2"),
        ({"game": "no"}, "args = {'game': 'no'}: KeyError"),
    ],
)
def test_other_games_are_refused(args: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        environments_of(load_recipe({"environments": [{"kind": "textarena", "args": args}]}))
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textarena", None)
    with pytest.raises(ConfigError, match="it needs textarena, which is missing; run: "):
        environments_of(load_recipe({"environments": [{"kind": "textarena", "args": {"game": "other"}}]}))

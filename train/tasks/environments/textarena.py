"""Games of textarena for one player (textarena 0.7), as a class of TRL's protocol.

Each observation repeats the game from its beginning; the policy gets the part that is new.
"""

import random
from typing import Any

from rocstar.sandbox.extras import pip_command
from rocstar.train.recipe.errors import ConfigError


class Game:
    """One game.

    Args:
        game: its id, as `textarena.make` takes it.

    Raises:
        ConfigError: textarena is not installed, has no such game, or the game needs more players.
    """

    def __init__(self, game: str) -> None:
        try:
            import textarena
        except ImportError:
            raise ConfigError(f"it needs textarena, which is missing; run: {pip_command('textarena')}") from None
        self._game, self.is_over = textarena.make(game), False
        try:
            self.reset(seed=0)
        except Exception as error:  # textarena raises AssertionError and others for a wrong number of players
            raise ConfigError(f"args.game = {game!r} cannot be played by one player: {error}") from None

    def reset(self, seed: int | None = None, **row: Any) -> str:
        """Begin a game; return its rules and its first position."""
        self._game.reset(num_players=1, seed=random.randrange(1 << 31) if seed is None else seed)
        self._shown, self.is_over = "", False
        return self._news()

    def act(self, text: str) -> str:
        """Make a move.

        Args:
            text: The move, in the form that the rules ask for.
        """
        self.is_over, _ = self._game.step(text)
        return "The game is over." if self.is_over else self._news()

    def get_reward(self) -> float:
        """Return the game's reward; 0 for a game that did not end."""
        rewards, _ = self._game.close() if self.is_over else (None, None)
        return float(rewards[0]) if rewards else 0.0

    def _news(self) -> str:
        _, text = self._game.get_observation()
        before, self._shown = self._shown, str(text)
        return self._shown.removeprefix(before).strip()

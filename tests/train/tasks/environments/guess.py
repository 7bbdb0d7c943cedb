"""A class of TRL's protocol that knows neither TRL nor rocstar."""


class Guess:
    def __init__(self, answer: str = "yes") -> None:
        self.answer = answer

    def reset(self, secret: int, **row: object) -> str:
        self.secret, self.won, self.tries = secret, False, 0
        return " It lies between 1 and 9."

    def guess(self, n: int, note: str | None = None) -> str:
        """Try a number.

        Args:
            n: The number to try.
            note: Not read.
        """
        if n < 0:
            raise ValueError(f"{n} is negative")
        self.won = self.won or n == self.secret
        self.tries += 1
        return self.answer if n == self.secret else "no"

    async def hint(self) -> list[dict[str, str]]:
        """Ask whether it is even."""
        return [{"type": "text", "text": "even" if self.secret % 2 == 0 else "odd"}]

    def _secret(self) -> int:
        return self.secret

    def get_reward(self) -> float:
        return float(self.won) - 0.125 * self.tries

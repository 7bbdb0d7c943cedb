"""The publisher interface of a run: it takes new weights. `Measure` reports an engine's metrics of a step."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol


class Publisher(Protocol):
    """Where the learner's weights go after an update."""

    @property
    def version(self) -> int:
        """The version of the weights that are served now; 0 before the first update."""

    def updating(self) -> AbstractAsyncContextManager[None]:
        """Entered before an update, left after its publish: no reader sees weights in between."""

    async def publish(self, version: int) -> None:
        """Serve the learner's present weights as `version`. ValueError unless it is above the one now."""


Measure = Callable[[], dict[str, float]]
"""Metrics of an engine for the step that ends now."""

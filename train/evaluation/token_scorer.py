"""A model on disk that scores what was written: entropies and log-probs of stored trajectories.

directory ──> weights in float32, as the learner has them ──> token_scores
    └───────> tokenizer ──> text of ids
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from transformers import PreTrainedTokenizerBase

from rocstar.engine.types import Trajectory
from rocstar.train.learner.checkpoint import set_threads
from rocstar.train.learner.model_io import check_can_load, load_model, load_tokenizer
from rocstar.train.learner.policy_model import PolicyModel
from rocstar.train.learner.token_scores import TokenScores as TokenScores
from rocstar.train.learner.token_scores import token_scores
from rocstar.train.recipe.errors import ConfigError

TOKENS_PER_MICROBATCH: Final = 8192
"""Input tokens of a forward; a longer trajectory has one of its own."""


class TokenScorer:
    """The weights and the tokenizer of one directory."""

    def __init__(self, path: str, *, threads: int) -> None:
        """`threads`: as `run.threads`, 0 = the physical cores. ConfigError for what is no model, or one whose
        entropies are not those of hidden states times a head."""
        set_threads(threads)
        check_can_load(path)
        self.path = path
        self.text = TextOfIds(load_tokenizer(path))
        self._policy = PolicyModel(load_model(path, "float32"))

    def score(self, trajectories: Sequence[Trajectory], *, temperature: float) -> list[TokenScores]:
        """Of each trajectory, in order. ConfigError for what these weights cannot have written, or weights
        that give no numbers."""
        try:
            scores = token_scores(
                self._policy,
                trajectories,
                temperature=temperature,
                tokens_per_microbatch=TOKENS_PER_MICROBATCH,
            )
        except ValueError as error:
            raise ConfigError(
                f"{self.path!r} cannot score these records: {error}; is it the model that wrote them?"
            ) from None
        if not all(one.is_finite for one in scores):
            raise ConfigError(f"{self.path!r} gives entropies that are not finite; are its weights?")
        return scores


class TextOfIds:
    """Text of ids, special tokens shown; that of a token by itself is made once."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def __call__(self, ids: Sequence[int]) -> str:
        if len(ids) != 1:
            return self._decoded(ids)
        if ids[0] not in self._known:
            self._known[ids[0]] = self._decoded(ids)
        return self._known[ids[0]]

    def _decoded(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

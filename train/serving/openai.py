"""`engine.kind = "openai"`: a running endpoint with OpenAI's /v1/completions.

It serves its own weights, for `rocstar eval` and `rocstar rollout`. Records without log-probs are marked, and
cannot be used for training.
"""

import contextlib
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from rocstar.engine.chat.chat import Tokenizer
from rocstar.engine.inference.base import InferenceError, RolloutEngine
from rocstar.engine.inference.openai import OpenAIEndpoint
from rocstar.train.learner.model_io import load_tokenizer, vocabulary_size
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.serving.backend import EngineBackend

KEY_VARIABLE = "ROCSTAR_OPENAI_KEY"
"""The environment's name for the endpoint's key. No recipe, record or log has it."""


class OpenAI(EngineBackend):
    """Somebody else's endpoint; of `model.path` it needs the tokenizer alone."""

    reads_weights = False

    def check(self, recipe: Recipe, *, elsewhere: bool) -> list[str]:
        """Nothing is asked of the endpoint: a dry run costs no tokens."""
        if recipe.engine.url.partition("://")[0] not in ("http", "https"):
            raise ConfigError(
                f"engine.url = {recipe.engine.url!r} is no address of an endpoint; it begins with http:// or "
                "https:// and ends with /v1"
            )
        return [f"engine.url = {recipe.engine.url!r}: whether it answers, which is seen when the engine opens"]

    @contextlib.asynccontextmanager
    async def open(self, recipe: Recipe, path: str, thread: ThreadPoolExecutor) -> AsyncIterator[RolloutEngine]:
        """ConfigError if the endpoint does not answer as it must."""
        engine, tokenizer = recipe.engine, load_tokenizer(path)
        key = os.environ.get(KEY_VARIABLE, "")
        endpoint = OpenAIEndpoint(
            engine.url,
            model=engine.model or path,
            vocab_size=max(len(tokenizer), vocabulary_size(path) or 0),
            max_requests=engine.max_running,
            codec=cast("Tokenizer", tokenizer),
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )
        async with contextlib.AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(endpoint)
            except (InferenceError, TimeoutError) as error:
                raise ConfigError(
                    f"engine.url = {engine.url!r} cannot be used as model {engine.model or path!r} "
                    f"({error or 'no answer in time'}); start the endpoint, correct engine.url and "
                    f"engine.model, or give its key in {KEY_VARIABLE}"
                ) from None
            yield endpoint

"""Convert request bodies to conversation orders: limits, messages, tools and prompt ids.

    /v1/chat/completions  rocstar-agent   the tool loop, with the agent's tools
                          rocstar-raw     one turn, with the client's tools
    /v1/completions       either          one turn after a text or token ids

Nothing starts here: a request becomes a `ConversationOrder`, or a RequestError that names the field.
"""

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rocstar.engine.chat.boundaries import ChatError
from rocstar.engine.gateway.graph import shown_prompt, template_messages
from rocstar.engine.gateway.messages import Request
from rocstar.engine.inference.base import ScoresPrompts
from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.serve.conversation import ConversationOrder, ServedModel
from rocstar.engine.serve.conversation_store import TEMPERATURE
from rocstar.engine.serve.requests import AGENT, MODELS, RAW, GenerationRequest, unsupported
from rocstar.engine.types import Task
from rocstar.sandbox.http.errors import RequestError

SOURCE = "serve"
TASK_ID, ANSWER = "task_id", "answer"
"""Keys of a request's `metadata` or `rocstar`: the task's name, which the noise depends on; its answer."""

PREFIX = "prefix_tokens"
"""The key of a task's `meta` for how many tokens a conversation went on from."""

COMPLETION_TOKENS = 16
"""OpenAI's default limit of a completion."""


@dataclass(slots=True)
class RequestBuilder:
    """Builds conversation orders for one agent.

    Args:
        agent: the served agent.
        max_context: tokens of a prompt and its response together; None if the engine does not report it.
    """

    agent: Agent
    max_context: int | None

    def chat(self, request: GenerationRequest) -> ConversationOrder:
        """The order of /v1/chat/completions."""
        check_model(request.model)
        messages, functions = template_messages(request.messages), request.functions
        if request.prefix_ids is not None:
            return self._continued(request, messages, request.prefix_ids)
        if request.model == RAW:
            shown, ids = shown_prompt(self.agent.chat, messages, functions)
            return self._order("raw", request, shown, ids, request.max_tokens, functions)
        if messages[-1]["role"] != "user":
            raise RequestError(
                f"messages.{len(messages) - 1}.role is {messages[-1]['role']}: the agent answers a user; end "
                f"with a user's message, or ask for {RAW}",
                field=f"messages.{len(messages) - 1}.role",
            )
        shown, ids = shown_prompt(self.agent.chat, messages, None)
        return self._order("agent", request, shown, ids, request.max_tokens, None)

    def completions(self, request: GenerationRequest) -> list[ConversationOrder]:
        """The orders of /v1/completions, one per prompt."""
        check_model(request.model)
        scores_prompt = request.echo and request.with_logprobs
        if scores_prompt and not isinstance(self.agent.inference, ScoresPrompts):
            raise unsupported(
                "echo",
                "echo with logprobs requests log-probs of the prompt, which this engine does not return; "
                "leave one of them out, or serve with engine.kind = embedded",
            )
        if len(request.prompts) * request.num_choices > 1 and request.is_streamed:
            raise RequestError("stream is of one prompt and one choice; leave it out", field="stream")
        orders = []
        for k, prompt in enumerate(request.prompts):
            ids = self.text_ids(prompt) if isinstance(prompt, str) else list(prompt)
            if not ids:
                raise RequestError(f"prompt.{k} is empty; give a text or ids", field="prompt")
            text = prompt if isinstance(prompt, str) else self.agent.chat.decode(ids)
            message = {"role": "user", "content": text}
            limit = COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
            order = self._order("completion", request, [message], ids, limit, [])
            orders.append(replace(order, scores_prompt=scores_prompt))
        return orders

    def _continued(
        self, request: GenerationRequest, messages: Sequence[Mapping[str, Any]], prefix: Sequence[int]
    ) -> ConversationOrder:
        """Return the order of a conversation that continues from token ids."""
        if request.model != AGENT:
            raise unsupported(
                "prefix_token_ids",
                f"prefix_token_ids go on in {AGENT} with its own tools; ask for it, or use /v1/completions",
            )
        if len(messages) > 1 or any(message["role"] != "user" for message in messages):
            raise RequestError(
                "messages: prefix_token_ids may be followed by one user message, or none", field="messages"
            )
        ids, chat = list(prefix), self.agent.chat
        said = messages or [{"role": "user", "content": chat.decode(ids)}]
        if messages:
            ends = [] if ids[-1] == chat.stop_id else [chat.stop_id]
            try:
                ids += [*ends, *chat.user_suffix_ids(messages[0]["content"])]
            except ChatError as error:
                raise RequestError(
                    f"a further message cannot be shown to the policy: {error}", field="messages"
                ) from None
        order = self._order("agent", request, said, ids, request.max_tokens, None)
        name = request.task_fields.get(TASK_ID) or _hash_id(json.dumps(ids))
        meta = {**order.task.meta, PREFIX: len(prefix)}
        return replace(order, task=replace(order.task, id=name, meta=meta))

    def text_ids(self, text: str) -> list[int]:
        """Ids of a text in which special tokens are themselves."""
        plain = text.encode("utf-8", "replace").decode("utf-8")
        return self.agent.chat.tokenizer.encode(plain, add_special_tokens=False)

    def tokenize(self, request: Request) -> list[int]:
        """Return the ids of a text, or of messages as the agent reads them. Raises RequestError."""
        if request.prompt_text is not None:
            return self.text_ids(request.prompt_text)
        return shown_prompt(self.agent.chat, template_messages(request.messages), None)[1]

    def _order(
        self,
        served_model: ServedModel,
        request: GenerationRequest,
        messages: Sequence[Mapping[str, Any]],
        ids: list[int],
        max_tokens: int | None,
        functions: Sequence[Mapping[str, Any]] | None,
    ) -> ConversationOrder:
        agent, about = self.agent, request.task_fields
        temperature = agent.sampling.temperature if request.temperature is None else request.temperature
        task = Task(
            id=about.get(TASK_ID)
            or _hash_id(json.dumps([served_model, [*map(dict, messages)], functions], sort_keys=True)),
            source=SOURCE,
            question=str(messages[-1]["content"]),
            answer=about.get(ANSWER, ""),
            meta={"face": served_model, TEMPERATURE: temperature},
            context=tuple(messages[:-1]),
        )
        return ConversationOrder(
            served_model=served_model,
            task=task,
            prompt_ids=ids,
            seed=secrets.randbits(53) if request.seed is None else request.seed,
            num_choices=request.num_choices,
            temperature=temperature,
            max_tokens=self._fitting(len(ids), max_tokens),
            stops=request.stops,
            functions=functions,
            is_judged=ANSWER in about,
            is_streamed=request.is_streamed,
        )

    def _fitting(self, prompt: int, request: int | None) -> int:
        """Return the token limit of the response: requested or trained, within the context."""
        limit = self.agent.limits.max_response_tokens if request is None else request
        if self.max_context is None:
            return limit
        room = self.max_context - prompt
        if room < 1:
            raise RequestError(
                f"the prompt has {prompt} tokens and the model takes {self.max_context} with its answer; "
                "send fewer or shorter messages",
                field="messages",
                kind="context_length_exceeded",
            )
        return min(limit, room)


def check_model(name: str) -> None:
    """Raise RequestError for a model that is not served."""
    if name not in MODELS:
        raise RequestError(
            f"model {name[:80]!r} is not served; there are {' and '.join(MODELS)}",
            status=404,
            field="model",
            kind="model_not_found",
        )


def _hash_id(text: str) -> str:
    """Return the task id of a question without one; equal questions have equal ids."""
    return f"{SOURCE}-{hashlib.blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=10).hexdigest()}"

"""The three faces: what a request becomes, by the name of the model that it asks for.

    /v1/chat/completions  rocstar-agent   the tool loop inside, its own tools
                          rocstar-raw     one turn, the client's tools
    /v1/completions       either          one turn behind a text or ids

Nothing begins here: a request is an order, or a ServeRefusal that names the field.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rocstar.engine.chat.boundaries import ChatError
from rocstar.engine.chat.shown import ShownCheck
from rocstar.engine.inference.base import ScoresPrompts
from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.serve.asked import (
    AGENT,
    MODELS,
    RAW,
    AskedChat,
    AskedCompletion,
    AskedMessage,
    Sampled,
)
from rocstar.engine.serve.checked import check_chat, functions_of, max_tokens_of, messages_of
from rocstar.engine.serve.conversation import ConversationOrder, Face
from rocstar.engine.serve.kept import CONVERSATION, TEMPERATURE
from rocstar.engine.serve.refusals import ServeRefusal
from rocstar.engine.serve.spoken import thought_tags
from rocstar.engine.types import Task

SOURCE = "serve"
TASK_ID, ANSWER = "task_id", "answer"
"""Keys of a request's `metadata` or `rocstar`: the task's name, which the noise depends on; its answer."""
PREFIX = "prefix_tokens"
"""The key of a task's `meta` for how many tokens a conversation went on from."""
COMPLETION_TOKENS = 16
"""What OpenAI gives a completion that names no limit."""


@dataclass(slots=True)
class Faces:
    """Reads requests for one agent.

    Args:
        agent: what answers.
        max_context: tokens of prompt and answer together; None where the engine does not say.
        name: gives a conversation its id, when nothing can be wrong with it any more.
    """

    agent: Agent
    max_context: int | None
    name: Callable[[], str]
    _own: ShownCheck = field(init=False)

    def __post_init__(self) -> None:
        self._own = self._check_of(self.agent.chat.tools)

    def chat(self, asked: AskedChat) -> ConversationOrder:
        """The order of /v1/chat/completions."""
        check_model(asked.model)
        check_chat(asked)
        messages: list[Mapping[str, Any]] = [*messages_of(asked.messages)]
        if asked.prefix_token_ids is not None:
            return self._continued(asked, messages, asked.prefix_token_ids)
        if asked.model == RAW:
            functions = functions_of(asked)
            messages, ids = self.prompt_of(messages, functions)
            return self._order("raw", asked, messages, ids, max_tokens_of(asked), functions)
        if asked.tools:
            raise ServeRefusal(
                f"tools: {AGENT} runs its own tools; ask for {RAW} to have calls of your own passed to you",
                param="tools",
                code="unsupported_value",
            )
        if messages[-1]["role"] != "user":
            raise ServeRefusal(
                f"messages.{len(messages) - 1}.role is {messages[-1]['role']}: the agent answers a user; end "
                f"with a user's message, or ask for {RAW}",
                param=f"messages.{len(messages) - 1}.role",
            )
        messages, ids = self.prompt_of(messages, None)
        return self._order("agent", asked, messages, ids, max_tokens_of(asked), None)

    def completions(self, asked: AskedCompletion) -> list[ConversationOrder]:
        """The orders of /v1/completions, one per prompt."""
        check_model(asked.model)
        if asked.echo and asked.logprobs is not None and not isinstance(self.agent.inference, ScoresPrompts):
            raise ServeRefusal(
                "echo with logprobs asks for log-probs of the prompt, which this engine does not tell; leave "
                "one of them out, or serve with engine.kind = embedded",
                param="echo",
                code="unsupported_value",
            )
        prompts = prompts_of(asked)
        if len(prompts) * asked.num_choices > 1 and asked.stream:
            raise ServeRefusal("stream is of one prompt and one choice; leave it out", param="stream")
        orders = []
        for k, prompt in enumerate(prompts):
            ids = self.text_ids(prompt) if isinstance(prompt, str) else list(prompt)
            if not ids:
                raise ServeRefusal(f"prompt.{k} is empty; give a text or ids", param="prompt")
            if max(ids) >= 1 << 31 or min(ids) < 0:
                raise ServeRefusal(f"prompt.{k} has an id that is none of this model's", param="prompt")
            text = prompt if isinstance(prompt, str) else self.agent.chat.decode(ids)
            message = {"role": "user", "content": text}
            limit = COMPLETION_TOKENS if asked.max_tokens is None else asked.max_tokens
            order = self._order("completion", asked, [message], ids, limit, [])
            orders.append(replace(order, scores_prompt=bool(asked.echo) and asked.logprobs is not None))
        return orders

    def _continued(
        self, asked: AskedChat, messages: Sequence[Mapping[str, Any]], prefix: Sequence[int]
    ) -> ConversationOrder:
        """The order of a conversation that goes on by its tokens, token for token."""
        if asked.model != AGENT or asked.tools:
            raise ServeRefusal(
                f"prefix_token_ids go on in {AGENT} with its own tools; ask for it, or use /v1/completions",
                param="prefix_token_ids",
                code="unsupported_value",
            )
        if len(messages) > 1 or any(message["role"] != "user" for message in messages):
            raise ServeRefusal(
                "messages: behind prefix_token_ids comes one message of the user, or none", param="messages"
            )
        ids, chat = list(prefix), self.agent.chat
        said = messages or [{"role": "user", "content": chat.decode(ids)}]
        if messages:
            ends = [] if ids[-1] == chat.stop_id else [chat.stop_id]
            try:
                ids += [*ends, *chat.user_suffix_ids(messages[0]["content"])]
            except ChatError as error:
                raise ServeRefusal(
                    f"a further message cannot be shown to the policy: {error}", param="messages"
                ) from None
        order = self._order("agent", asked, said, ids, max_tokens_of(asked), None)
        name = asked.about.get(TASK_ID) or _digest_of(json.dumps(ids))
        meta = {**order.task.meta, PREFIX: len(prefix)}
        return replace(order, task=replace(order.task, id=name, meta=meta))

    def prompt_of(
        self, messages: Sequence[Mapping[str, Any]], functions: Sequence[Mapping[str, Any]] | None
    ) -> tuple[list[Mapping[str, Any]], list[int]]:
        """The messages as the policy's template shows them, and their ids. An answer of this server comes
        back as it was sent: its thoughts are put where the policy wrote them. ServeRefusal for what the
        template does not show."""
        chat = self.agent.chat
        try:
            check = self._own if functions is None else self._check_of(functions)
            shown = check.shown_form(messages, thought_tags(chat.boundaries.opening))
            if shown[-1]["role"] != "user":
                return shown, chat.messages_ids(shown, functions)
            return shown, chat.prompt_ids(shown[-1]["content"], shown[:-1], functions)
        except ChatError as error:
            raise ServeRefusal(
                f"messages cannot be shown to the policy as they are: {error}", param="messages"
            ) from None

    def text_ids(self, text: str) -> list[int]:
        """Ids of a text in which special tokens are themselves."""
        plain = text.encode("utf-8", "replace").decode("utf-8")
        return self.agent.chat.tokenizer.encode(plain, add_special_tokens=False)

    def message_ids(self, asked: Sequence[AskedMessage]) -> list[int]:
        """Ids of messages, as the agent would read them."""
        return self.prompt_of(messages_of(list(asked)), None)[1]

    def _check_of(self, tools: Sequence[Mapping[str, Any]]) -> ShownCheck:
        return ShownCheck(self.agent.chat.template, tools, **self.agent.chat.names)

    def _order(
        self,
        face: Face,
        asked: Sampled,
        messages: Sequence[Mapping[str, Any]],
        ids: list[int],
        max_tokens: int | None,
        functions: Sequence[Mapping[str, Any]] | None,
    ) -> ConversationOrder:
        agent, about = self.agent, asked.about
        temperature = agent.sampling.temperature if asked.temperature is None else asked.temperature
        task = Task(
            id=about.get(TASK_ID) or _digest(face, messages, functions),
            source=SOURCE,
            question=str(messages[-1]["content"]),
            answer=about.get(ANSWER, ""),
            meta={"face": face, TEMPERATURE: temperature},
            context=tuple(messages[:-1]),
        )
        order = ConversationOrder(
            id="",
            face=face,
            task=task,
            prompt_ids=ids,
            seed=secrets.randbits(53) if asked.seed is None else asked.seed,
            num_choices=asked.num_choices,
            temperature=temperature,
            max_tokens=self._fitting(len(ids), max_tokens),
            stops=tuple(asked.stop or ()),
            functions=functions,
            is_judged=ANSWER in about,
            is_streamed=bool(asked.stream),
        )
        return order

    def named(self, order: ConversationOrder) -> ConversationOrder:
        """The order with the id of its conversation, which its records have too."""
        name = self.name()
        task = replace(order.task, meta={**order.task.meta, CONVERSATION: name})
        return replace(order, id=name, task=task)

    def _fitting(self, prompt: int, asked: int | None) -> int:
        """The limit of the answer: as asked or as trained, and no more than there is room for."""
        limit = self.agent.limits.max_response_tokens if asked is None else asked
        if self.max_context is None:
            return limit
        room = self.max_context - prompt
        if room < 1:
            raise ServeRefusal(
                f"the prompt has {prompt} tokens and the model takes {self.max_context} with its answer; "
                "send fewer or shorter messages",
                param="messages",
                code="context_length_exceeded",
            )
        return min(limit, room)


def check_model(name: str) -> None:
    """ServeRefusal for a model that is not served."""
    if name not in MODELS:
        raise ServeRefusal(
            f"model {name[:80]!r} is not served; there are {' and '.join(MODELS)}",
            status=404,
            param="model",
            code="model_not_found",
        )


def prompts_of(asked: AskedCompletion) -> list[str | list[int]]:
    """The prompts of a request, one or several. ServeRefusal for none."""
    given = asked.prompt
    if isinstance(given, str):
        return [given]
    if given and all(isinstance(one, int) for one in given):
        return [[one for one in given if isinstance(one, int)]]
    prompts: list[str | list[int]] = [one for one in given if not isinstance(one, int)]
    if not prompts:
        raise ServeRefusal("prompt is empty; give a text or ids", param="prompt")
    return prompts


def _digest(face: str, messages: Sequence[Mapping[str, Any]], functions: Any) -> str:
    """The name of a question that has none: equal questions have equal names."""
    return _digest_of(json.dumps([face, [dict(message) for message in messages], functions], sort_keys=True))


def _digest_of(text: str) -> str:
    return f"{SOURCE}-{hashlib.blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=10).hexdigest()}"

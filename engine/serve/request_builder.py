"""Convert request bodies to conversation orders: limits, messages, tools and prompt ids.

    /v1/chat/completions  rocstar-agent   the tool loop, with the agent's tools
                          rocstar-raw     one turn, with the client's tools
    /v1/completions       either          one turn after a text or token ids

Nothing starts here: a request becomes a `ConversationOrder`, or a RequestError that names the field.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rocstar.engine.chat.boundaries import ChatError
from rocstar.engine.gateway.graph import shown_prompt
from rocstar.engine.inference.base import ScoresPrompts
from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.serve.conversation import ConversationOrder, ServedModel
from rocstar.engine.serve.conversation_store import TEMPERATURE
from rocstar.engine.serve.requests import (
    AGENT,
    MODELS,
    RAW,
    ChatRequest,
    CompletionRequest,
    Content,
    GenerationRequest,
    RequestMessage,
    TokenizeRequest,
    unsupported,
)
from rocstar.engine.types import Task
from rocstar.sandbox.http.errors import RequestError


def resolve_max_tokens(request: ChatRequest) -> int | None:
    """Return the limit of either field. Raises RequestError for two different limits."""
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise RequestError(
            f"max_tokens = {old} and max_completion_tokens = {new}: give one limit",
            field="max_completion_tokens",
            kind="invalid_value",
        )
    return old if new is None else new


def validate_chat(request: ChatRequest) -> None:
    """Raise RequestError for options that no served model supports."""
    if not request.messages and request.prefix_token_ids is None:
        raise RequestError("messages is empty; send at least one message", field="messages", kind="invalid_value")
    form = "text" if request.response_format is None else request.response_format.get("type")
    if form != "text":
        raise unsupported(
            "response_format",
            f"response_format.type = {json.dumps(form)[:80]} is not supported: the policy writes as it "
            "was trained to; leave it out or pass text",
        )


def to_messages(request: Sequence[RequestMessage]) -> list[Mapping[str, Any]]:
    """Convert messages to the format of chat templates. Raises RequestError for an invalid message."""
    return [_to_message(message, f"messages.{k}") for k, message in enumerate(request)]


def _to_message(given: RequestMessage, where: str) -> dict[str, Any]:
    # Templates know `system`; `developer` is OpenAI's newer name for it.
    role = "system" if given.role == "developer" else given.role
    message: dict[str, Any] = {"role": role, "content": _content_text(given.content, f"{where}.content")}
    if given.tool_calls:
        if role != "assistant":
            raise RequestError(f"{where}.tool_calls: only an assistant calls tools", field=f"{where}.tool_calls")
        message["tool_calls"] = [_to_call(call, f"{where}.tool_calls.{k}") for k, call in enumerate(given.tool_calls)]
    elif given.content is None and role != "assistant":
        raise RequestError(f"{where}.content is missing; write its text", field=f"{where}.content")
    if given.reasoning_content:
        message["reasoning_content"] = given.reasoning_content
    if given.tool_call_id is not None:
        message["tool_call_id"] = given.tool_call_id
    if given.name is not None:
        message["name"] = given.name
    return message


def _content_text(content: Content, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for k, part in enumerate(content):
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = json.dumps(part.get("type"), default=str)[:80]
            raise RequestError(f"{where}.{k} is a part of type {kind}; only text is read here", field=f"{where}.{k}")
        texts.append(part["text"])
    return "".join(texts)


def _to_call(call: Mapping[str, Any], where: str) -> dict[str, Any]:
    function = call.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise RequestError(
            f'{where} is not of the form {{"function": {{"name": text, "arguments": an object as JSON}}}}', field=where
        )
    return {"type": "function", "id": str(call.get("id") or ""), "function": {"name": name, "arguments": arguments}}


def _to_function(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, Mapping):
        raise RequestError(f'{where} is not of the form {{"type": "function", "function": ...}}', field=where)
    name, parameters = function.get("name"), function.get("parameters", {"type": "object", "properties": {}})
    if not isinstance(name, str) or not name or not isinstance(parameters, Mapping):
        raise RequestError(
            f"{where}.function needs a name and the JSON schema of its parameters", field=f"{where}.function"
        )
    described = str(function.get("description") or "")
    return {"type": "function", "function": {"name": name, "description": described, "parameters": dict(parameters)}}


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

    def chat(self, request: ChatRequest) -> ConversationOrder:
        """The order of /v1/chat/completions."""
        check_model(request.model)
        validate_chat(request)
        messages = to_messages(request.messages)
        if request.prefix_token_ids is not None:
            return self._continued(request, messages, request.prefix_token_ids)
        if request.model == RAW:
            functions = [_to_function(tool, f"tools.{k}") for k, tool in enumerate(request.tools or [])]
            if request.tool_choice == "none":
                functions = []
            messages, ids = shown_prompt(self.agent.chat, messages, functions)
            return self._order("raw", request, messages, ids, resolve_max_tokens(request), functions)
        if request.tools:
            raise unsupported(
                "tools", f"tools: {AGENT} runs its own tools; ask for {RAW} to have calls of your own passed to you"
            )
        if messages[-1]["role"] != "user":
            raise RequestError(
                f"messages.{len(messages) - 1}.role is {messages[-1]['role']}: the agent answers a user; end "
                f"with a user's message, or ask for {RAW}",
                field=f"messages.{len(messages) - 1}.role",
            )
        messages, ids = shown_prompt(self.agent.chat, messages, None)
        return self._order("agent", request, messages, ids, resolve_max_tokens(request), None)

    def completions(self, request: CompletionRequest) -> list[ConversationOrder]:
        """The orders of /v1/completions, one per prompt."""
        check_model(request.model)
        scores_prompt = bool(request.echo) and request.logprobs is not None
        if scores_prompt and not isinstance(self.agent.inference, ScoresPrompts):
            raise unsupported(
                "echo",
                "echo with logprobs requests log-probs of the prompt, which this engine does not return; "
                "leave one of them out, or serve with engine.kind = embedded",
            )
        prompts = split_prompts(request)
        if len(prompts) * request.num_choices > 1 and request.stream:
            raise RequestError("stream is of one prompt and one choice; leave it out", field="stream")
        orders = []
        for k, prompt in enumerate(prompts):
            ids = self.text_ids(prompt) if isinstance(prompt, str) else list(prompt)
            if not ids:
                raise RequestError(f"prompt.{k} is empty; give a text or ids", field="prompt")
            if max(ids) >= 1 << 31 or min(ids) < 0:
                raise RequestError(f"prompt.{k} has an id that is not in this model's vocabulary", field="prompt")
            text = prompt if isinstance(prompt, str) else self.agent.chat.decode(ids)
            message = {"role": "user", "content": text}
            limit = COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
            order = self._order("completion", request, [message], ids, limit, [])
            orders.append(replace(order, scores_prompt=scores_prompt))
        return orders

    def _continued(
        self, request: ChatRequest, messages: Sequence[Mapping[str, Any]], prefix: Sequence[int]
    ) -> ConversationOrder:
        """Return the order of a conversation that continues from token ids."""
        if request.model != AGENT or request.tools:
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
        order = self._order("agent", request, said, ids, resolve_max_tokens(request), None)
        name = request.task_fields.get(TASK_ID) or _hash_id(json.dumps(ids))
        meta = {**order.task.meta, PREFIX: len(prefix)}
        return replace(order, task=replace(order.task, id=name, meta=meta))

    def text_ids(self, text: str) -> list[int]:
        """Ids of a text in which special tokens are themselves."""
        plain = text.encode("utf-8", "replace").decode("utf-8")
        return self.agent.chat.tokenizer.encode(plain, add_special_tokens=False)

    def tokenize(self, request: TokenizeRequest) -> list[int]:
        """Return the ids of a text, or of messages as the agent reads them. Raises RequestError."""
        if (request.prompt is None) == (request.messages is None):
            raise RequestError("give prompt or messages, one of them", field="prompt")
        if request.messages is None:
            return self.text_ids(request.prompt or "")
        return shown_prompt(self.agent.chat, to_messages(request.messages), None)[1]

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
            stops=tuple(request.stop or ()),
            functions=functions,
            is_judged=ANSWER in about,
            is_streamed=bool(request.stream),
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


def split_prompts(request: CompletionRequest) -> list[str | list[int]]:
    """Return the prompts of a request. Raises RequestError if there is none."""
    given = request.prompt
    if isinstance(given, str):
        return [given]
    if given and all(isinstance(one, int) for one in given):
        return [[one for one in given if isinstance(one, int)]]
    prompts: list[str | list[int]] = [one for one in given if not isinstance(one, int)]
    if not prompts:
        raise RequestError("prompt is empty; give a text or ids", field="prompt")
    return prompts


def _hash_id(text: str) -> str:
    """Return the task id of a question without one; equal questions have equal ids."""
    return f"{SOURCE}-{hashlib.blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=10).hexdigest()}"

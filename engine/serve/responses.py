"""The schemas of response bodies, for openapi.py, and the errors of failed conversations.

response_stream.py and endpoint.py build the responses; tests compare them with these schemas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rocstar.sandbox.http.openapi import ref

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
NULL: Schema = {"type": "null"}


def _const(value: str) -> Schema:
    return {"const": value, "type": "string"}


def _nullable(*schemas: Schema) -> Schema:
    return {"anyOf": [*schemas, NULL]}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _body(description: str, optional: Mapping[str, Schema] | None = None, /, **required: Schema) -> Schema:
    """Return the schema of an object that has these fields and no others."""
    return {
        "type": "object",
        "description": description,
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


FINISH: Schema = {"enum": ["stop", "length", "tool_calls"], "type": "string"}
EVENTS = (ref("ToolUseEvent"), ref("ToolResultEvent"))
TEXTS = {"content": TEXT, "reasoning_content": TEXT, "tool_calls": _list(ref("CalledTool"))}
COUNTS = {"prompt_tokens": INTEGER, "completion_tokens": INTEGER, "total_tokens": INTEGER}
HEAD = {"id": TEXT, "created": INTEGER, "model": TEXT}

SCHEMAS: Mapping[str, Schema] = {
    "Problem": _body(
        "An error: the value, the reason and the fix; `param` is the invalid field of the request.",
        message=TEXT,
        type=TEXT,
        param=_nullable(TEXT),
        code=_nullable(TEXT),
    ),
    "ErrorBody": _body("An answer with a status of 400 or more.", error=ref("Problem")),
    "CalledFunction": _body("A function, and its arguments as JSON.", name=TEXT, arguments=TEXT),
    "CalledTool": _body(
        "A call for the client to make; `index` in chunks only.",
        {"index": INTEGER},
        id=TEXT,
        type=_const("function"),
        function=ref("CalledFunction"),
    ),
    "ToolUseEvent": _body(
        "The agent calls one of its own tools; `index` is the choice.",
        type=_const("tool_use"),
        index=INTEGER,
        id=TEXT,
        name=_nullable(TEXT),
        arguments=_nullable({"type": "object", "additionalProperties": True}),
    ),
    "ToolResultEvent": _body(
        "The result of the call with the same id.",
        type=_const("tool_result"),
        index=INTEGER,
        id=TEXT,
        name=_nullable(TEXT),
        status=TEXT,
        is_error={"type": "boolean"},
        content=TEXT,
    ),
    "Message": _body(
        "The content, thinking and calls of the policy.",
        {**TEXTS, "server_tool_events": _list({"anyOf": [*EVENTS]})},
        role=_const("assistant"),
        content=TEXT,
    ),
    "TokenLogprob": _body(
        "A token, by its text or as token_id:N, and its log_softmax(logits / T); null for a token of a tool result.",
        token=TEXT,
        logprob=_nullable(NUMBER),
        top_logprobs=_list(NULL),
    ),
    "ChatLogprobs": _body("The tokens of a choice in order.", content=_list(ref("TokenLogprob"))),
    "ChatChoice": _body(
        "A choice of a response.",
        {"token_ids": _list(INTEGER)},
        index=INTEGER,
        message=ref("Message"),
        logprobs=_nullable(ref("ChatLogprobs")),
        finish_reason=FINISH,
    ),
    "PromptDetails": _body("Details of the prompt tokens.", cached_tokens=INTEGER),
    "Usage": _body(
        "Tokens by who wrote them: the policy's are `completion_tokens`, its tools' `tool_tokens`.",
        **COUNTS,
        prompt_tokens_details=ref("PromptDetails"),
        tool_tokens=INTEGER,
        turns=INTEGER,
    ),
    "ServingFacts": _body(
        "The seed and task to reproduce the response, and its rewards.",
        {"isolation": TEXT, "rewards": _list(NUMBER)},
        seed=INTEGER,
        task_id=TEXT,
    ),
    "ChatCompletion": _body(
        "The answer of a conversation.",
        {"prompt_token_ids": _list(INTEGER)},
        **HEAD,
        object=_const("chat.completion"),
        choices=_list(ref("ChatChoice")),
        usage=ref("Usage"),
        rocstar=ref("ServingFacts"),
    ),
    "Delta": _body("The new text and calls of a message.", {"role": _nullable(_const("assistant")), **TEXTS}),
    "ChatDelta": _body(
        "The new part of a choice.",
        {"token_ids": _list(INTEGER)},
        index=INTEGER,
        delta=ref("Delta"),
        logprobs=_nullable(ref("ChatLogprobs")),
        finish_reason=_nullable(FINISH),
    ),
    "ChatCompletionChunk": _body(
        "An event of a stream; the last event is [DONE].",
        {
            "server_tool_event": _nullable(*EVENTS),
            "usage": _nullable(ref("Usage")),
            "rocstar": _nullable(ref("ServingFacts")),
            "prompt_token_ids": _list(INTEGER),
        },
        **HEAD,
        object=_const("chat.completion.chunk"),
        choices=_list(ref("ChatDelta")),
    ),
    "LogprobColumns": _body(
        "Log-probs of log_softmax(logits / T), a token a place; null where there is none.",
        tokens=_list(TEXT),
        token_logprobs=_list(_nullable(NUMBER)),
        top_logprobs=_list(_nullable({"type": "object", "additionalProperties": _nullable(NUMBER)})),
        text_offset=_list(INTEGER),
    ),
    "TextChoice": _body(
        "A completion of a prompt, or its next part.",
        index=INTEGER,
        text=TEXT,
        logprobs=_nullable(ref("LogprobColumns")),
        finish_reason=_nullable(FINISH),
    ),
    "TextUsage": _body("Tokens of prompts and continuations.", **COUNTS),
    "Seeded": _body("The seed to reproduce the response.", seed=INTEGER),
    "TextCompletion": _body(
        "The continuations of every prompt, one prompt after the other.",
        **HEAD,
        object=_const("text_completion"),
        choices=_list(ref("TextChoice")),
        usage=ref("TextUsage"),
        rocstar=ref("Seeded"),
    ),
    "TextCompletionChunk": _body(
        "An event of a streamed completion; the last event is [DONE].",
        {"usage": _nullable(ref("Usage"))},
        **HEAD,
        object=_const("text_completion"),
        choices=_list(ref("TextChoice")),
    ),
    "Model": _body(
        "A name to ask for; `max_model_len` are the tokens of a prompt and its answer together.",
        id=TEXT,
        object=_const("model"),
        created=INTEGER,
        owned_by=TEXT,
        max_model_len=_nullable(INTEGER),
    ),
    "ModelList": _body("The served models.", object=_const("list"), data=_list(ref("Model"))),
    "Tokens": _body("Ids of a text.", tokens=_list(INTEGER), count=INTEGER, max_model_len=_nullable(INTEGER)),
    "Text": _body("The text of ids.", prompt=TEXT),
    "TokenizerInfo": _body(
        "The tokenizer's special tokens, and the chat template.",
        bos_token=_nullable(TEXT),
        eos_token=_nullable(TEXT),
        pad_token=_nullable(TEXT),
        chat_template=TEXT,
    ),
    "Feedback": _body(
        "A verdict that was stored.",
        object=_const("feedback"),
        id=TEXT,
        index=INTEGER,
        thumb={"enum": ["up", "down"], "type": "string"},
    ),
    "Health": _body("The server takes requests.", status=_const("ok")),
}
"""The schemas by name."""

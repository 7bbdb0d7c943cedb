"""Dialects of foreign agents: recorded requests, answers, streams, and invalid bodies."""

import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from rocstar.engine.gateway.dialects import anthropic_messages, responses
from rocstar.engine.gateway.dialects.fields import MAX_COMPARED_BYTES, Fields, Known, num_unknown_bytes
from rocstar.engine.gateway.endpoint import DIALECTS
from rocstar.engine.gateway.messages import FunctionCall, Message, Request
from rocstar.sandbox.http.errors import RequestError
from tests.engine.gateway.foreign_clients import CLIENTS, RECORDINGS, sampled

REWRITES = {"smolagents"}
"""Clients that write the sampled turn as text; each of their requests opens a root."""
NAMES = sorted({path.stem for path in RECORDINGS.glob("*.jsonl")} - REWRITES)
USER = {"role": "user", "content": "2+3?"}
CALL = FunctionCall(id="call_1", name="add", arguments='{"a": 2, "b": 3}')
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
ADD = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA}}


def requests(name: str) -> list[Request]:
    """The first and the second request of a client."""
    lines = [json.loads(line) for line in (RECORDINGS / f"{name}.jsonl").read_text().splitlines()]
    return [DIALECTS[line["route"]].read(Fields.of_body(json.dumps(line["body"]).encode())) for line in lines]


@pytest.mark.parametrize("name", NAMES)
def test_the_second_request_of_a_client_extends_the_first_one_by_the_sampled_turn_and_its_result(name: str) -> None:
    first, second = requests(name)
    function, arguments = CLIENTS[name].script[0]
    sampled_call = FunctionCall(id="", name=function, arguments=json.dumps(arguments))
    keys = [message.key for message in second.messages]
    assert keys[: len(first.messages)] == [message.key for message in first.messages]
    assert [*first.functions] == [*second.functions] and function in str(first.functions)
    turn, result = second.messages[len(first.messages) :]
    assert turn.key == Message(role="assistant", calls=(sampled_call,)).key
    assert result.role == "tool" and "5" in result.text and result.call_id == turn.calls[0].id


def test_a_client_that_writes_calls_as_text_extends_no_path() -> None:
    assert not any(message.calls or message.role == "tool" for message in requests("smolagents")[1].messages)
    assert requests("smolagents")[0].ignored == ("tool_choice",)


def test_fields_without_an_effect_are_named() -> None:
    assert {*requests("claude-code")[0].ignored} == {"context_management", "metadata", "output_config", "thinking"}
    ignored = requests("codex")[0].ignored
    assert {"tools.namespace", "tools.web_search", "store", "include", "reasoning", "prompt_cache_key"} <= {*ignored}


def read_messages(**fields: Any) -> Request:
    return anthropic_messages.read(Fields({"model": "m", "max_tokens": 9, "messages": [USER], **fields}))


def read_responses(**fields: Any) -> Request:
    return responses.read(Fields({"model": "m", "input": "2+3?", **fields}))


def test_blocks_of_anthropic_become_messages() -> None:
    blocks = [
        {"type": "thinking", "thinking": "Add.", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "Calling"},
        {"type": "text", "text": "."},
        {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 2}, "cache_control": {"type": "ephemeral"}},
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "no"}], "is_error": True},
        {"type": "tool_result", "tool_use_id": "t2"},
        {"type": "text", "text": "Go "},
        {"type": "text", "text": "on."},
    ]
    request = read_messages(
        system=[{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}],
        messages=[
            USER,
            {"role": "system", "content": "Now."},
            {"role": "assistant", "content": blocks},
            {"role": "user", "content": results},
        ],
        tools=[{"name": "add", "description": "Adds.", "input_schema": SCHEMA}, {"type": "bash_2025", "name": "b"}],
        tool_choice={"type": "any"},
        stop_sequences=["END"],
        temperature=1,
        stream=True,
    )
    call = FunctionCall(id="t1", name="add", arguments='{"a": 2}')
    assert request.messages == (
        Message(role="system", text="Be brief."),
        Message(role="user", text="2+3?"),
        Message(role="system", text="Now."),
        Message(role="assistant", text="Calling.", reasoning="Add.", calls=(call,)),
        Message(role="tool", text="no", call_id="t1", is_error=True),
        Message(role="tool", call_id="t2"),
        Message(role="user", text="Go on."),
    )
    assert request.functions == (ADD,) and request.ignored == ("tools.bash_2025", "tool_choice")
    assert (request.max_tokens, request.temperature, request.stops, request.is_streamed) == (9, 1.0, ("END",), True)


def test_items_of_responses_become_messages() -> None:
    request = read_responses(
        instructions="Be brief.",
        input=[
            USER,
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Add."}], "encrypted_content": "e"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Calling."}]},
            {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a":2}'},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "5"}]},
            {"role": "developer", "content": "Go on."},
        ],
        tools=[{"type": "function", "name": "add", "description": "Adds.", "parameters": SCHEMA, "strict": True}],
        tool_choice="required",
        max_output_tokens=7,
        store=False,
        top_p=1,
        metadata=None,
    )
    call = FunctionCall(id="c1", name="add", arguments='{"a":2}')
    assert request.messages == (
        Message(role="system", text="Be brief."),
        Message(role="user", text="2+3?"),
        Message(role="assistant", text="Calling.", reasoning="Add.", calls=(call,)),
        Message(role="tool", text="5", call_id="c1"),
        Message(role="system", text="Go on."),
    )
    assert request.functions == (ADD,) and request.max_tokens == 7 and request.ignored == ("tool_choice", "store")


def test_of_a_history_only_what_is_new_is_read() -> None:
    known: Known = {}
    tools = [{"name": "add", "input_schema": SCHEMA}]

    def body(*messages: Any) -> bytes:
        return json.dumps({"model": "m", "messages": messages, "tools": tools}).encode()

    def read(*messages: Any) -> Request:
        request = anthropic_messages.read(Fields.of_body(body(*messages), known))
        assert request == anthropic_messages.read(Fields.of_body(body(*messages)))
        return request

    use = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}
    turn = {"role": "assistant", "content": [{"type": "text", "text": "Calling."}, use]}
    first, second = read(USER, turn), read(USER, turn, USER)
    assert all(old is new for old, new in zip(first.messages, second.messages, strict=False))
    assert first.functions[0] is second.functions[0] and len(second.messages) == 3
    longer = body(USER, turn, USER, {"role": "user", "content": "x" * 99})
    assert 99 < num_unknown_bytes(longer, known) < len(longer) - len(json.dumps(turn))
    assert num_unknown_bytes(longer, {}) == num_unknown_bytes(longer[:-1], known) + 1 == len(longer)
    huge = body(USER, turn, USER, {"role": "user", "content": "x" * MAX_COMPARED_BYTES})
    assert num_unknown_bytes(huge, known) == len(huge)  # the loop does not split it
    edited = read(USER, {**turn, "content": [{**use, "input": {"a": True}}]}, USER)  # equal in Python
    assert edited.messages[1].key != second.messages[1].key and edited.messages[0] is first.messages[0]
    assert len(read(USER).messages) == 1


@pytest.mark.parametrize(("read", "choice"), [(read_messages, {"type": "none"}), (read_responses, "none")])
def test_no_function_is_shown_if_the_client_wants_no_call(read: Any, choice: Any) -> None:
    tools = [{"name": "add", "input_schema": SCHEMA}]
    assert read(tools=tools, tool_choice=choice).functions == ()


BAD_INPUT = {"id": "t", "name": "f", "input": "x"}


def test_a_request_names_a_bounded_number_of_ignored_fields() -> None:
    tools = [{"type": f"{k}" * 40, "name": "x"} for k in range(100)]
    ignored = read_responses(tools=tools, **{f"field{k}": 1 for k in range(100)}).ignored
    assert len(ignored) == 64 and max(map(len, ignored)) <= 40


DEEP = b"[" * 300 + b"]" * 300
HOSTILE = [
    (anthropic_messages, b"", "not JSON"),
    (anthropic_messages, b"[]", "not an object"),
    (anthropic_messages, b'{"model": "m", "messages": ' + DEEP + b"}", "recursion limit"),
    (anthropic_messages, {"model": "m"}, "messages is missing"),
    (anthropic_messages, {"model": "", "messages": [USER]}, 'model is ""'),
    (anthropic_messages, {"model": "m", "messages": [USER], "max_tokens": 0}, "max_tokens is 0"),
    (anthropic_messages, {"model": "m", "messages": [USER], "max_tokens": True}, "max_tokens is true"),
    (anthropic_messages, {"model": "m", "messages": [USER], "temperature": 11}, "temperature is 11"),
    (anthropic_messages, {"model": "m", "messages": [USER], "stop_sequences": [""]}, "stop_sequences is"),
    (anthropic_messages, {"model": "m", "messages": [USER], "logit_bias": {"1": 2}}, "logit_bias is"),
    (anthropic_messages, {"model": "m", "messages": [{"role": "tool", "content": ""}]}, "messages.0.role"),
    (anthropic_messages, {"model": "m", "messages": [3]}, "messages.0 is not an object"),
    (
        anthropic_messages,
        {"model": "m", "messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        "messages.0.content.0.type",
    ),
    (
        anthropic_messages,
        {"model": "m", "messages": [{"role": "assistant", "content": [{"type": "tool_use", **BAD_INPUT}]}]},
        "messages.0.content.0.input",
    ),
    (anthropic_messages, {"model": "m", "messages": [USER], "tools": [{"input_schema": {}}]}, "tools.0.name"),
    (responses, {"model": "m"}, "input is missing"),
    (responses, {"model": "m", "input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
    (responses, {"model": "m", "input": "x", "n": 2}, "n is 2"),
    (responses, {"model": "m", "input": "x", "top_p": 1, "n": True}, "n is true"),
    (responses, {"model": "m", "input": [{"type": "web_search_call"}]}, "input.0.type"),
    (responses, {"model": "m", "input": [{"type": "function_call", "name": "f"}]}, "input.0.call_id"),
    (responses, {"model": "m", "input": [{"role": "user", "content": [{"type": "image"}]}]}, "input.0.content.0"),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "body", "problem"), HOSTILE)
def test_an_invalid_body_gives_one_error_with_its_field(dialect: ModuleType, body: Any, problem: str) -> None:
    with pytest.raises(RequestError, match=problem) as caught:
        dialect.read(Fields.of_body(body if isinstance(body, bytes) else json.dumps(body).encode()))
    assert caught.value.status == 400 and str(caught.value) in json.dumps(dialect.error(caught.value)).replace(
        '\\"', '"'
    )


TURNS = [
    Message(role="assistant", text="5"),
    Message(role="assistant", text="", reasoning="Add."),
    Message(role="assistant", text="Calling.", reasoning="Add.", calls=(CALL, CALL)),
]


def events(dialect: ModuleType, sample: Any) -> Iterator[dict[str, Any]]:
    for event in dialect.stream(sample):
        name, data, *rest = event.decode().split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}" and rest == ["", ""]
        yield value


@pytest.mark.parametrize("turn", TURNS)
def test_a_stream_of_anthropic_has_the_content_of_the_answer(turn: Message) -> None:
    sample = sampled(read_messages(), turn)
    whole, blocks = anthropic_messages.write(sample), []
    for event in events(anthropic_messages, sample):
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                blocks.append(event["content_block"])
                json_text = ""
            case "content_block_delta":
                delta = dict(event["delta"])
                json_text += delta.pop("partial_json", "")
                del delta["type"]
                for name, text in delta.items():
                    blocks[event["index"]][name] += text
                if json_text:
                    blocks[event["index"]]["input"] = json.loads(json_text)
            case "message_delta":
                message |= event["delta"] | {"usage": event["usage"]}
    assert {**message, "content": blocks} == whole
    assert whole["stop_reason"] == ("tool_use" if turn.calls else "end_turn")
    assert read_messages(messages=[USER, {"role": "assistant", "content": blocks}]).messages[1] == turn


@pytest.mark.parametrize("turn", TURNS)
def test_a_stream_of_responses_has_the_content_of_the_answer(turn: Message) -> None:
    sample = sampled(read_responses(), turn)
    whole, items, texts = responses.write(sample), [], {}
    for number, event in enumerate(events(responses, sample)):
        assert event["sequence_number"] == number
        match event["type"]:
            case "response.output_item.done":
                items.append(event["item"])
            case kind if kind.endswith(".delta"):
                texts[event["item_id"]] = event["delta"]
            case "response.completed":
                assert event["response"] == whole
    assert items == whole["output"] and len(texts) == len(items)
    assert all(json.dumps(texts[item["id"]]) in json.dumps(item) for item in items)
    assert read_responses(input=[USER, *items]).messages[1] == turn


def test_the_answer_says_that_its_limit_ended_it() -> None:
    sample = sampled(read_messages(), Message(role="assistant", text="5"), finish="length")
    assert anthropic_messages.write(sample)["stop_reason"] == "max_tokens"
    assert responses.write(sample)["incomplete_details"] == {"reason": "max_output_tokens"}
    assert b"event: response.incomplete" in [*responses.stream(sample)][-1]


def test_errors_have_the_form_of_their_dialect() -> None:
    busy = RequestError("busy", status=503, kind="busy")
    assert anthropic_messages.error(busy) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "busy"},
    }
    assert responses.error(busy)["error"]["code"] == "busy"
    for dialect in (anthropic_messages, responses):
        assert dialect.failed(busy).startswith(b"event: error\ndata: ")


def test_arguments_are_equal_after_a_client_writes_their_numbers_as_javascript_does() -> None:
    sampled_call = FunctionCall(id="1", name="f", arguments='{"b": 1.0, "a": [2e3, 1.5, -0.0], "c": 1e400}')
    sent = FunctionCall(id="2", name="f", arguments='{"a":[2000,1.5,0],"b":1,"c":1e400}')
    assert sampled_call.key == sent.key != FunctionCall(id="1", name="f", arguments='{"b": 1.5}').key

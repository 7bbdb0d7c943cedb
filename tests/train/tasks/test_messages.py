"""Messages in the forms in which data sets hold them; what would be lost is refused by name."""

from typing import Any

import pytest

from rocstar.train.recipe.errors import ConfigError
from rocstar.train.tasks.messages import read_messages

CALL = {"name": "f", "arguments": {"code": "1"}}
NESTED = {"type": "function", "function": CALL}


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"role": "system", "content": " a \n"}, {"role": "system", "content": " a \n"}),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "ab"},
        ),
        # Parquet gives every message, and every part of one, the fields of all.
        (
            {"role": "user", "content": "a", "tool_calls": None, "name": None, "weight": None},
            {"role": "user", "content": "a"},
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "a", "image": None}]},
            {"role": "user", "content": "a"},
        ),
        (
            {"role": "assistant", "content": None, "tool_calls": [NESTED]},
            {"role": "assistant", "content": "", "tool_calls": [NESTED]},
        ),
        (
            {"role": "assistant", "tool_calls": [{**CALL, "id": None}]},
            {"role": "assistant", "content": "", "tool_calls": [NESTED]},
        ),
        (
            {"role": "assistant", "content": "a", "tool_calls": [{"id": "1", "function": CALL}]},
            {"role": "assistant", "content": "a", "tool_calls": [{**NESTED, "id": "1"}]},
        ),
        ({"role": "assistant", "content": "a", "tool_calls": []}, {"role": "assistant", "content": "a"}),
        (
            {"role": "tool", "content": "1", "tool_call_id": "1", "name": "f"},
            {"role": "tool", "content": "1", "tool_call_id": "1", "name": "f"},
        ),
        (
            {"role": "assistant", "reasoning_content": "so"},
            {"role": "assistant", "content": "", "reasoning_content": "so"},
        ),
    ],
)
def test_a_message_is_brought_to_one_form(given: dict[str, Any], read: dict[str, Any]) -> None:
    assert read_messages([given], "here") == [read]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("a", "message 1 is no object with a 'role' ('a')"),
        ({"from": "human", "value": "a"}, "is no object with a 'role'"),
        ({"role": "human", "content": "a"}, "has role 'human'; it must be one of system, developer, user"),
        ({"role": "user"}, "(user) has no content; write its text"),
        ({"role": "user", "content": None}, "(user) has no content"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "(assistant) has no content"),
        ({"role": "user", "content": 5}, "content is 5; it must be text, or a list of text parts"),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]},
            "content has a part of type 'image_url'; only text",
        ),
        ({"role": "user", "content": ["a"]}, "content has 'a'; only text"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "content has a part of type 'text'"),
        ({"role": "user", "content": "a", "tool_calls": [NESTED]}, "only an assistant calls tools"),
        ({"role": "assistant", "tool_calls": {"a": 1}}, "tool_calls is {'a': 1}; it must be a list"),
        ({"role": "assistant", "tool_calls": ["f"]}, "the tool call 'f' is not of the form"),
        ({"role": "assistant", "tool_calls": [{"name": "f"}]}, "is not of the form"),
        ({"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"a": b""}}]}, "not of the form"),
        ({"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{"}]}, "not of the form"),
        ({"role": "assistant", "tool_calls": [{"name": "f", "arguments": "[1]"}]}, "not of the form"),
        ({"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{} {}"}]}, "not of the form"),
        ({"role": "assistant", "tool_calls": [{"name": "f", "arguments": '{"a": 1, "a": 2}'}]}, "not of the"),
        ({"role": "tool", "content": "a", "name": 5}, "name is 5; it must be text"),
        ({"role": "assistant", "content": "a", "weight": 0}, "has a field 'weight' (0), which would be lost"),
        ({"role": "assistant", "content": "a", "thinking": "b" * 99}, "'thinking' ('bbb"),
    ],
)
def test_what_cannot_be_kept_is_refused(given: Any, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_messages([given], "rows.jsonl, line 7")
    assert str(refused.value).startswith("rows.jsonl, line 7: message 1")
    assert words in str(refused.value), str(refused.value)


@pytest.mark.parametrize("value", [None, [], "a", {"role": "user"}])
def test_what_is_no_list_of_messages(value: Any) -> None:
    with pytest.raises(ConfigError, match="line 7 is no list of messages"):
        read_messages(value, "line 7")

"""Conversations of public forms arrive in one form; each can be shown, and its calls fit."""

import json
from pathlib import Path
from typing import Any

import pytest

from rocstar.train.data.build import build
from rocstar.train.data.build_config import ConversationsConfig, SourceConfig, load_build
from rocstar.train.data.conversation_rows import ConversationReader
from rocstar.train.data.row_table import Candidate, Dropped
from rocstar.train.learner.cold_start import read_conversations
from tests.fakes.json_lines import write_lines

ADD = {
    "name": "add",
    "description": "Adds.",
    "parameters": {
        "type": "dict",
        "properties": {"a": {"type": "int", "required": True}, "type": {"type": "str, optional"}},
        "required": ["a"],
    },
}
CALL = {"name": "add", "arguments": {"a": 1}}
ASKED = {"role": "user", "content": "Add 1."}
CALLS = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": CALL}]}
RESULT = {"role": "tool", "content": "1"}
ENDS = {"role": "assistant", "content": "It is 1."}


def read(row: dict[str, Any], form: str = "messages", **config: Any) -> Candidate | Dropped:
    source = SourceConfig.model_validate({"name": "s", "source": "s", "licence": "mit", "format": form})
    return ConversationReader(source, ConversationsConfig(**config)).read(row)


def kept(row: dict[str, Any], form: str = "messages", **config: Any) -> Candidate:
    found = read(row, form, **config)
    assert isinstance(found, Candidate), found
    return found


def reason(row: dict[str, Any], form: str = "messages", **config: Any) -> str:
    found = read(row, form, **config)
    assert isinstance(found, Dropped) and found.evidence, found
    return found.reason


def test_forms_of_one_conversation_are_one() -> None:
    ours = kept({"messages": [ASKED, CALLS, RESULT, ENDS], "tools": [{"type": "function", "function": ADD}]})
    sharegpt = kept(
        {
            "conversations": [
                {"from": "human", "value": "Add 1."},
                {"from": "function_call", "value": json.dumps(CALL)},
                {"from": "observation", "value": "1"},
                {"from": "gpt", "value": "It is 1."},
            ],
            "tools": json.dumps([ADD]),
        },
        "sharegpt",
    )
    assert ours.key == sharegpt.key and ours.body == sharegpt.body and ours.id == sharegpt.id
    call, result = ours.body["messages"][1]["tool_calls"][0], ours.body["messages"][2]
    assert call["id"] == result["tool_call_id"]


def test_types_become_those_of_json_schema_and_a_parameter_may_be_called_type() -> None:
    parameters = kept({"messages": [ASKED, ENDS], "tools": [ADD]}).body["tools"][0]["function"]["parameters"]
    assert parameters == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "type": {"type": "string"}},
        "required": ["a"],
    }


def test_instructions_become_two_messages() -> None:
    row = {"instruction": "Translate.", "input": "Haus", "output": "house"}
    assert kept(row, "instruction").body["messages"] == [
        {"role": "user", "content": "Translate.\n\nHaus"},
        {"role": "assistant", "content": "house"},
    ]
    assert reason({"instruction": "Translate."}, "instruction") == "unreadable"


def test_thoughts_are_dropped_or_kept(tmp_path: Path) -> None:
    row = {"messages": [ASKED, {**ENDS, "reasoning": "1 is 1"}]}
    assert "reasoning_content" not in kept(row).body["messages"][1]
    assert reason(row, drop_reasoning=False, templates=["compact"]) == "not_shown"
    thinks = tmp_path / "thinks.jinja"
    thinks.write_text("{% for m in messages %}{{ m.reasoning_content or '' }}{{ m.content }}{% endfor %}")
    shown = kept(row, drop_reasoning=False, templates=[str(thinks)])
    assert shown.body["messages"][1]["reasoning_content"] == "1 is 1"


def called(**function: Any) -> dict[str, Any]:
    call = {"type": "function", "function": {**CALL, **function}}
    return {"messages": [ASKED, {**CALLS, "tool_calls": [call]}], "tools": [ADD]}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"messages": [ASKED, CALLS], "tools": []}, "bad_call"),
        (called(name="subtract"), "bad_call"),
        (called(arguments={"a": "one"}), "bad_call"),
        (called(arguments={}), "bad_call"),
        (called(arguments="{"), "unreadable"),
        (called(arguments="[1]"), "unreadable"),
        ({"messages": [ASKED, ENDS], "tools": [{"name": "f", "parameters": {"type": "any"}}]}, "bad_call"),
        ({"messages": [ASKED, ENDS, RESULT, ENDS], "tools": [ADD]}, "bad_call"),
        ({"messages": [ASKED, CALLS, RESULT], "tools": [ADD]}, "unfinished"),
        ({"messages": [ASKED, {**ENDS, "content": " "}]}, "unfinished"),
        ({"messages": [ENDS]}, "unfinished"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}, ENDS]}, "unreadable"),
        ({"messages": [ASKED, ENDS], "tools": "["}, "unreadable"),
        ({"text": "?"}, "unreadable"),
    ],
)
def test_what_could_not_be_learned_is_dropped_with_its_reason(row: dict[str, Any], expected: str) -> None:
    assert reason(row) == expected


def test_calls_are_looked_at_if_they_are_to_be() -> None:
    assert kept(called(name="subtract"), calls=False)


def test_a_mixture_is_what_sft_reads(tmp_path: Path) -> None:
    rows = [
        {"id": k, "messages": [{"role": "user", "content": f"Say {k}."}, {"role": "assistant", "content": f"{k}"}]}
        for k in range(20)
    ]
    same = {"id": "copy", "messages": [{"role": "system", "content": "Be brief."}, *rows[0]["messages"]]}
    for name, part in (("one", rows[:12]), ("two", [*rows[12:], same])):
        write_lines(tmp_path / f"{name}.jsonl", part)
    sources = [
        f'[[sources]]\nname = "{name}"\nsource = "{name}.jsonl"\nlicence = "mit"\nmost = {most}\n'
        for name, most in (("one", 5), ("two", 30))
    ]
    (tmp_path / "mix.toml").write_text('kind = "conversations"\n' + "".join(sources))
    funnel = build(load_build(tmp_path / "mix.toml"), tmp_path / "out")
    assert funnel.kept == {"one": 5, "two": 8} and funnel.dropped["duplicate"] == {"two": 1}
    assert any("30 were asked for" in note for note in funnel.notes)
    found = read_conversations(tmp_path / "out" / "conversations.jsonl")
    assert len(found) == 13 and all(row["messages"][-1]["role"] == "assistant" for row in found)

"""The text of a turn with its calls in their places."""

import json
from typing import Any

import pytest

from rocstar.engine.chat.toolcalls import parse_tool_calls
from rocstar.engine.record.json_record import Verdict, to_record
from rocstar.engine.tools.python import PYTHON_SCHEMA
from rocstar.engine.types import (
    FinishReason,
    Origin,
    Scored,
    Segment,
    Task,
    ToolResult,
    Trajectory,
    TrajectoryKey,
    Turn,
)
from rocstar.train.reading.view.conversation import conversation, given_answer, pieces, row_texts
from tests.fakes.agents import JUPYTER_SCHEMA
from tests.fakes.scripted_policy import ByteTokenizer

PROGRAM = "import sys\nfor line in sys.stdin:\n    print('<b>', line)"


def call_of(text: str) -> dict[str, Any]:
    """The first call of a trajectory of one turn that wrote `text`, parsed and recorded as a rollout does."""
    tokenizer, calls = ByteTokenizer(), parse_tool_calls(text)
    result = ToolResult(status="ok", is_error=False, text="7")
    ids = tuple(tokenizer.encode(text))
    trajectory = Trajectory(
        key=TrajectoryKey(seed=0, step=1, task_id="t", sibling=0),
        task=Task(id="t", source="s", question="q", answer="7"),
        ids=ids,
        logprobs=(-0.5,) * len(ids),
        segments=(Segment(start=0, end=len(ids), origin=Origin.policy),),
        version_spans=(),
        turns=(Turn(start=0, end=len(ids), text=text, stopped=True, calls=calls, results=(result,) * len(calls)),),
        finish_reason=FinishReason.answered,
        outcome=Scored(reward=1.0, method="strict"),
    )
    verdict = Verdict(bucket="kept", penalty_error=0.0, penalty_format=0.0, advantage=1.0)
    record = to_record(trajectory, verdict, stage="rl", num_answers=1, decode=tokenizer.decode)
    (turn,) = conversation(record)["turns"]
    return next(piece for piece in turn["pieces"] if not isinstance(piece, str))


@pytest.mark.parametrize("schema", [PYTHON_SCHEMA, JUPYTER_SCHEMA], ids=["python", "jupyter"])
def test_a_program_comes_first_whatever_else_a_tool_takes(schema: Any) -> None:
    """Each schema that a policy can be given, every argument of it filled, in either order."""
    function = schema["function"]
    names = list(function["parameters"]["properties"])
    for order in (names, names[::-1]):
        arguments = {name: PROGRAM if name == "code" else f"the\n{name} given" for name in order}
        body = json.dumps({"name": function["name"], "arguments": arguments})
        call = call_of(f"<tool_call>{body}</tool_call>")
        assert call["name"] == function["name"] and call["arguments"][0] == (None, PROGRAM)
        others = {(name, f"the\n{name} given") for name in names if name != "code"}
        assert set(call["arguments"][1:]) == others


def test_arguments_that_are_no_text_or_empty_are_there() -> None:
    body = json.dumps({"name": "other", "arguments": {"input": "", "code": "1", "limits": {"wall_s": 2}}})
    call = call_of(f"<tool_call>{body}</tool_call>")
    assert call["arguments"] == [(None, "1"), ("input", ""), ("limits", '{\n "wall_s": 2\n}')]


@pytest.mark.parametrize("raw", ['{"name": "x", "arguments": "print(1)"}', '{"name": "x", "arguments": {"code": "a'])
def test_arguments_that_cannot_be_parsed_are_as_they_were_written(raw: str) -> None:
    call = call_of(f"<tool_call>{raw}</tool_call>")
    assert (call["name"], call["arguments"]) == ("undecodable call", [(None, f"<tool_call>{raw}</tool_call>")])


def test_a_mention_that_is_not_closed_does_not_take_the_next_call_along() -> None:
    good = '<tool_call>{"name": "x", "arguments": {"code": "2"}}</tool_call>'
    call = call_of(f"<tool_call>torn {good}")
    assert (call["name"], call["arguments"]) == ("x", [(None, "2")])


def test_undecodable_unfinished_and_unmatched_calls_are_there() -> None:
    bad = {"name": None, "arguments": None, "malformed": "not JSON", "status": "malformed_call"}
    bad |= {"is_error": True, "result": "Bad\n"}
    good = {"name": "python", "arguments": {"code": "1"}, "status": "ok", "is_error": False, "result": ""}
    text, first, second, end = pieces({"text": "a<tool_call>{oops", "calls": [bad, good]})
    assert text == "a" and end == "" and isinstance(first, dict) and isinstance(second, dict)
    assert (first["status"], first["result"], first["is_error"]) == ("malformed_call: not JSON", "Bad", True)
    assert first["arguments"] == [(None, "<tool_call>{oops")] and second["name"] == "python"
    never = list(pieces({"text": "b<tool_call>never run</tool_call>", "calls": []}))
    assert never == ["b", "<tool_call>never run</tool_call>", ""]


@pytest.mark.parametrize(
    ("text", "finish", "given"),
    [
        ("<answer>\\boxed{1}</answer> no, <answer>\\boxed{ 2 }</answer>", "answered", "2"),
        ("<answer> seven </answer>", "answered", "seven"),
        ("so \\boxed{3} is it", "answered", "3"),
        ("Some words.\nIt is 4.\n", "answered", "It is 4."),
        ("Some words.\nIt is 4.\n", "max_tokens", ""),
        ("<think><answer>5</answer></think>It is 6", "answered", "It is 6"),
        ("", "answered", ""),
    ],
)
def test_the_given_answer_is_that_of_the_last_turn(text: str, finish: str, given: str) -> None:
    record = {"turns": [{"text": "<answer>0</answer>"}, {"text": text}], "finish_reason": finish}
    assert given_answer(record) == given
    assert given_answer({"turns": []}) == ""


def test_texts_of_a_row_are_short() -> None:
    found = row_texts({"task": {"question": "q" * 10**6, "answer": "a" * 999}, "turns": [{"text": "g" * 999}]})
    assert {name: len(text) for name, text in found.items()} == {"question": 600, "answer": 200, "given": 200}

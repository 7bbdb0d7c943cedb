"""A task with its own other side: results, further messages of the user, and the end of an attempt."""

from collections.abc import Sequence
from typing import Any

import pytest

from rocstar.engine.chat.chat import ChatFormat, load_template
from rocstar.engine.rollout.rollout import run_trajectory
from rocstar.engine.tools.box import Dispatcher
from rocstar.engine.tools.tool import ToolFailure
from rocstar.engine.types import (
    Attempt,
    Failed,
    FinishReason,
    Origin,
    Outcome,
    Scored,
    Task,
    ToolResult,
    Trajectory,
    TrajectoryKey,
    Turn,
)
from tests.fakes.agents import TOKENIZER, make_agent
from tests.fakes.scripted_policy import ByteTokenizer, check_trajectory, run_virtual

LLAMA_TOKENS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
CHAT = ChatFormat(TOKENIZER, load_template("qwen3", None), [])
TASK = Task(id="t/1", source="s", question="Light red.", answer="")
KEY = TrajectoryKey(seed=5, step=3, task_id="t/1", sibling=2)
CALL = '<tool_call>\n{"name": "light", "arguments": {"lamp": "red"}}\n</tool_call>'


class Judge:
    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        results = [result.text for turn in attempt.turns for result in turn.results]
        return Scored(reward=1.0, method=f"{len(attempt.turns)} {results} {attempt.is_truncated}")


class Script:
    """Answers turn after turn; keeps what it saw."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.seen = answers, list[tuple[str, int]]()

    async def answer(
        self, task: Task, turns: Sequence[Turn], *, deadline: float | None
    ) -> tuple[ToolResult, ...] | str | None:
        self.seen.append((turns[-1].text, len(turns[-1].calls)))
        answer = self.answers[len(turns) - 1]
        if isinstance(answer, Exception):
            raise answer
        assert task is TASK and deadline is not None
        found: tuple[ToolResult, ...] | str | None = answer
        return found


def result(text: str) -> tuple[ToolResult, ...]:
    return (ToolResult(status="ok", is_error=False, text=text),)


def roll(texts: Sequence[str], script: Script, **limits: Any) -> Trajectory:
    agent = make_agent(list(texts), chat=CHAT, tools=Dispatcher(tools=[]), judge=Judge(), counterpart=script, **limits)
    trajectory = run_virtual(run_trajectory(agent, TASK, KEY))
    check_trajectory(trajectory)
    return trajectory


def test_results_and_messages_are_appended_until_it_is_over() -> None:
    script = Script(result("lit"), "And blue?", None)
    t = roll([CALL, "Red is lit.", "No."], script)
    assert script.seen == [(CALL, 1), ("Red is lit.", 0), ("No.", 0)]
    assert t.finish_reason is FinishReason.answered
    assert t.outcome == Scored(reward=1.0, method="3 ['lit'] False")
    origins = [segment.origin for segment in t.segments]
    policy, prompt, tool = Origin.policy, Origin.prompt, Origin.tool
    assert origins == [prompt, policy, tool, policy, prompt, policy]
    assert sum(t.loss_mask()) == sum(len(TOKENIZER.encode(text)) + 1 for text in (CALL, "Red is lit.", "No."))


def test_the_whole_reads_as_the_template_renders_the_conversation() -> None:
    t = roll([CALL, "Red is lit.", "No."], Script(result("lit"), "And blue?", None))
    messages = [
        {"role": "user", "content": "Light red."},
        {"role": "assistant", "content": CALL},
        {"role": "tool", "content": "lit"},
        {"role": "assistant", "content": "Red is lit."},
        {"role": "user", "content": "And blue?"},
        {"role": "assistant", "content": "No."},
    ]
    ids, mask = CHAT.encode_conversation(messages)
    assert (t.ids.tolist(), t.loss_mask().tolist()) == (ids, mask)


def test_a_turn_with_calls_may_be_the_last() -> None:
    t = roll([CALL], Script(None), max_turns=1)
    assert t.finish_reason is FinishReason.answered and not t.is_truncated
    assert len(t.turns[0].calls) == 1 and t.turns[0].results == ()


def test_limits_hold_as_with_tools() -> None:
    t = roll([CALL] * 3, Script(result("lit"), result("lit"), result("lit")), max_turns=2)
    assert t.finish_reason is FinishReason.max_turns and len(t.turns) == 2
    t = roll(["Red is lit."], Script("x" * 4000))
    assert t.finish_reason is FinishReason.tool_budget
    assert t.segments[-1].origin is Origin.policy


def test_a_message_of_the_user_needs_no_room_for_turns_with_calls() -> None:
    t = roll(["a", "b", "c"], Script("1", "2", None), max_turns=1)
    assert t.finish_reason is FinishReason.answered and len(t.turns) == 3


def test_results_are_cut_as_those_of_tools() -> None:
    t = roll([CALL, "So."], Script(result("x" * 500), None), max_tool_tokens=40)
    tool = next(s for s in t.segments if s.origin is Origin.tool)
    assert "(truncated)" in CHAT.decode(t.ids[tool.start : tool.end].tolist())
    assert t.turns[0].results[0].text == "x" * 500


def test_its_failure_is_ours() -> None:
    t = roll([CALL], Script(ToolFailure("gone", retryable=False)))
    assert t.outcome == Failed(kind="tool_failed", retryable=False, detail="gone")


@pytest.mark.parametrize("name", ["rstar2", "compact", "qwen3", "llama3", "smollm2"])
def test_every_bundled_template_takes_a_further_message(name: str) -> None:
    tokenizer = ByteTokenizer(special=LLAMA_TOKENS) if name == "llama3" else TOKENIZER
    chat = ChatFormat(tokenizer, load_template(name, None), [])
    first = chat.prompt_ids("one?")
    written = [*tokenizer.encode("Aye."), chat.stop_id]
    found = chat.decode([*first, *written, *chat.user_suffix_ids("two?")])
    context = [{"role": "user", "content": "one?"}, {"role": "assistant", "content": f"{opening(chat)}Aye."}]
    assert found == chat.decode(chat.prompt_ids("two?", context))


def opening(chat: ChatFormat) -> str:
    """What the template writes of the policy's turn; it is part of the turn when it is rendered again."""
    return chat.boundaries.opening

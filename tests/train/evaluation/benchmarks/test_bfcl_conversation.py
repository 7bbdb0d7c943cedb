"""Conversations of BFCL v3 with a made-up class: next speaker, execution and verdict."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.chat.chat import ChatFormat, load_template
from rocstar.engine.chat.toolcalls import parse_tool_calls
from rocstar.engine.inference.base import Sampling
from rocstar.engine.record.json_record import Verdict, from_record, to_record
from rocstar.engine.rollout.rollout import Agent, RolloutLimits, run_trajectory
from rocstar.engine.tools.box import Dispatcher
from rocstar.engine.tools.tool import ToolFailure
from rocstar.engine.types import Attempt, FinishReason, Scored, Task, ToolResult, TrajectoryKey, Turn
from rocstar.train.evaluation.benchmarks.bfcl.bfcl import (
    MAX_STEPS,
    Finding,
    FunctionJudge,
    SimulatedUser,
    judge_conversation,
    measures,
    split_messages,
)
from rocstar.train.evaluation.benchmarks.bfcl.calls import Call
from rocstar.train.evaluation.benchmarks.bfcl.entries import load_tasks
from rocstar.train.evaluation.benchmarks.bfcl.gold import format_calls, gold, near_miss
from rocstar.train.evaluation.benchmarks.bfcl.simulation import PROGRAM, MessageOutcome, Simulation
from tests.fakes.scripted_policy import ByteTokenizer, ScriptedPolicy, check_trajectory

from .bfcl_package import make_package

RED: Call = ("light", {"lamp": "red"})
BLUE: Call = ("light", {"lamp": "blue", "hours": 2})
DARK: Call = ("douse", {"lamp": "red"})
PROSE = "Done."
BROKEN = "<tool_call>\n{\n</tool_call>"


def turn(text: str, results: tuple[ToolResult, ...] = ()) -> Turn:
    return Turn(start=0, end=0, text=text, stopped=True, calls=parse_tool_calls(text), results=results)


def turns(*said: str | Call | Sequence[Call]) -> tuple[Turn, ...]:
    """Turns of the policy: prose, a call, or several calls."""
    return tuple(turn(one if isinstance(one, str) else format_calls(_list(one))) for one in said)


def _list(one: Any) -> list[Call]:
    return [one] if isinstance(one[0], str) else list(one)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Task]:
    made = load_tasks(make_package(tmp_path_factory.mktemp("bfcl")))
    return {task.meta["category"]: task for task in made}


@dataclass(frozen=True)
class Played:
    """Conversations on one simulation."""

    simulation: Simulation

    async def judged(self, task: Task, said: Sequence[Turn], *, is_truncated: bool = False) -> Scored:
        attempt = Attempt(task=task, turns=tuple(said), is_truncated=is_truncated)
        outcome = await FunctionJudge(self.simulation).score(attempt, deadline=None)
        assert isinstance(outcome, Scored) and outcome.is_correct == (outcome.reward == 1.0)
        return outcome

    async def verdict(self, task: Task, said: Sequence[Turn], **options: bool) -> str:
        """Return the reason of a verdict."""
        outcome = await self.judged(task, said, **options)
        if outcome.method not in ("called", "abstained"):
            assert outcome.is_correct is (outcome.method in ("turns_match", "calls_match"))
        return outcome.method

    async def converse(self, task: Task, *said: str | Call | Sequence[Call]) -> list[Any]:
        """Return the answers to each turn of a policy with these texts."""
        user, done, answers = SimulatedUser(self.simulation), [], []
        for one in turns(*said):
            done.append(one)
            answer = await user.answer(task, done, deadline=None)
            answers.append(answer)
            if isinstance(answer, tuple):
                done[-1] = turn(one.text, answer)
        return answers


@pytest.fixture
async def bfcl() -> AsyncIterator[Played]:
    simulation = Simulation(timeout_s=30.0)
    yield Played(simulation)
    simulation.close()


LAMPS: Call = ("lamps", {})
RIGHT = [RED, PROSE, BLUE, DARK, PROSE]
UNCLOSED = '<tool_call>\n{"name": "li'


@pytest.mark.parametrize(
    ("category", "said", "why"),
    [
        ("multi_turn_base", RIGHT, "turns_match"),
        ("multi_turn_base", [RED, PROSE, [BLUE, DARK], PROSE], "turns_match"),
        ("multi_turn_base", [RED, PROSE, DARK, BLUE, PROSE], "turns_match"),
        ("multi_turn_base", [RED, PROSE, BLUE, PROSE], "state_differs"),
        ("multi_turn_base", [RED, PROSE, BLUE, DARK, LAMPS, PROSE], "turns_match"),
        ("multi_turn_base", [RED, PROSE, ("nothing", {}), BLUE, DARK, PROSE], "turns_match"),
        ("multi_turn_base", [PROSE, BLUE, DARK, PROSE], "nothing_called"),
        ("multi_turn_base", [BROKEN, BLUE, DARK, PROSE], "nothing_called"),
        ("multi_turn_base", [RED, PROSE, PROSE], "nothing_called"),
        ("multi_turn_base", [RED, PROSE], "messages_not_reached"),
        ("multi_turn_base", [], "messages_not_reached"),
        ("multi_turn_base", [RED, PROSE, ("light", {"lamp": "blue"}), DARK, PROSE], "result_missing"),
        ("multi_turn_base", [RED, PROSE, ("_load_scenario", {"scenario": {}}), *RIGHT[2:]], "turns_match"),
        ("multi_turn_base", [RED, PROSE, ("remove", {}), *RIGHT[2:]], "turns_match"),
        # As upstream: if the last message has too many steps, its calls count.
        ("multi_turn_base", [LAMPS] * (MAX_STEPS + 1), "messages_not_reached"),
        ("multi_turn_base", [*RIGHT[:-1], *[LAMPS] * (MAX_STEPS + 1)], "turns_match"),
        ("multi_turn_miss_param", [PROSE, RED, PROSE], "turns_match"),
        ("multi_turn_miss_param", [LAMPS, PROSE, RED, PROSE], "turns_match"),
        ("multi_turn_miss_param", [BLUE, PROSE, RED, PROSE], "state_differs"),
        ("simple", [f"{format_calls([RED])}\n{UNCLOSED}"], "calls_match"),
        ("simple", [format_calls([RED]) + BROKEN], "undecodable"),
    ],
)
async def test_state_and_results_after_every_message(
    tasks: dict[str, Task], bfcl: Played, category: str, said: Any, why: str
) -> None:
    assert await bfcl.verdict(tasks[category], turns(*said)) == why


async def test_a_truncated_conversation_is_wrong(tasks: dict[str, Task], bfcl: Played) -> None:
    task = tasks["multi_turn_base"]
    assert await bfcl.verdict(task, turns(*RIGHT), is_truncated=True) == "truncated"


def turns_of(texts: str | Sequence[str]) -> tuple[Turn, ...]:
    return turns(*([texts] if isinstance(texts, str) else texts))


async def test_every_gold_is_right_and_every_near_miss_wrong(tasks: dict[str, Task], bfcl: Played) -> None:
    found = {}
    for category, task in tasks.items():
        assert (await bfcl.judged(task, turns_of(gold(task)))).is_correct, category
        missed = await bfcl.judged(task, turns_of(near_miss(task)))
        assert missed.reward == 0, category
        found[category] = missed.method
    assert set(found.values()) == {"calls_differ", "nothing_called", "called", "abstained"}


async def test_the_user_speaks_after_a_turn_without_calls(tasks: dict[str, Task], bfcl: Played) -> None:
    said = (RED, ("light", {"lamp": "red"}), PROSE, [BLUE, DARK], PROSE)
    first, again, said, both, end = await bfcl.converse(tasks["multi_turn_base"], *said)
    assert [r.text for r in first] == ['{"lit": "red", "hours": 1}'] and not first[0].is_error
    assert again[0].text == "Error during execution: red is lit" and again[0].status == "error"
    assert said == "Blue instead, two hours."
    assert [r.text for r in both] == ['{"lit": "blue", "hours": 2}', '{"doused": "red"}']
    assert end is None


async def test_an_unreadable_turn_ends_the_users_message(tasks: dict[str, Task], bfcl: Played) -> None:
    spoilt = format_calls([RED]) + "\n" + BROKEN
    found = await bfcl.converse(tasks["multi_turn_base"], spoilt, BROKEN)
    assert found == ["Blue instead, two hours.", None]
    assert await bfcl.converse(tasks["simple"], RED) == [None], "one message ends with its first turn"


async def test_steps_of_a_message_are_bounded(tasks: dict[str, Task], bfcl: Played) -> None:
    answers = await bfcl.converse(tasks["multi_turn_base"], *[LAMPS] * (MAX_STEPS + 1))
    assert [isinstance(answer, tuple) for answer in answers] == [True] * MAX_STEPS + [False]
    assert answers[-1] is None


@pytest.mark.parametrize("name", ["wait", "crash"])
async def test_a_call_that_does_not_end_has_no_effect(tasks: dict[str, Task], name: str) -> None:
    task, simulation = tasks["multi_turn_base"], Simulation(timeout_s=2.0)
    bfcl = Played(simulation)
    with contextlib.closing(simulation):
        hung, lit = await bfcl.converse(task, [RED, (name, {})], RED)
        assert [r.status for r in hung] == ["timeout"] * 2 and all(r.is_error for r in hung)
        assert lit[0].text == '{"lit": "red", "hours": 1}'
        said = (turn(format_calls([RED, (name, {})]), hung), *turns(*RIGHT))
        assert await bfcl.verdict(task, said) == "turns_match"
        # A record that lacks the results: the judge itself meets the call.
        assert await bfcl.verdict(task, turns((name, {}), PROSE, RED, PROSE)) == "simulation_hung"


@pytest.mark.parametrize(
    ("category", "call", "text"),
    [("multi_turn_base", "talk", "said"), ("multi_turn_long_context", "lamps", "['porch', 'attic']")],
)
async def test_a_print_is_no_result_and_long_contexts_are_loaded(
    tasks: dict[str, Task], bfcl: Played, category: str, call: str, text: str
) -> None:
    (answer,) = await bfcl.converse(tasks[category], (call, {}))
    assert answer[0].text == text


async def test_an_answer_does_not_depend_on_earlier_requests(tasks: dict[str, Task], bfcl: Played) -> None:
    answers = [await bfcl.converse(tasks["multi_turn_base"], RED) for _ in range(3)]
    answers += await asyncio.gather(*(bfcl.converse(tasks["multi_turn_base"], RED) for _ in range(4)))
    assert answers == answers[:1] * 7


async def test_classes_that_do_not_run_are_our_failure(tasks: dict[str, Task], tmp_path: Path, bfcl: Played) -> None:
    package = make_package(tmp_path)
    (task,) = [t for t in load_tasks(package) if t.meta["category"] == "multi_turn_base"]
    (package / "eval_checker" / "multi_turn_eval" / "func_source_code" / "ticket_api.py").unlink()
    with pytest.raises(ToolFailure, match="pip install --no-deps"):
        await bfcl.verdict(task, turns(*RIGHT))
    assert await bfcl.verdict(tasks["multi_turn_base"], turns(*RIGHT)) == "turns_match"
    with pytest.raises(ToolFailure):
        await Played(Simulation(python="/bin/false")).verdict(tasks["multi_turn_base"], turns(*RIGHT))


@pytest.mark.parametrize(
    ("text", "published", "strict"),
    [
        (PROSE, "abstained", 1.0),
        ("", "abstained", 1.0),
        (BROKEN, "abstained", 0.0),
        ('<tool_call>\n{"name": "light"', "abstained", 0.0),
        (format_calls([RED]), "called", 0.0),
    ],
)
async def test_broken_json_abstains_by_the_published_rule_alone(
    tasks: dict[str, Task], bfcl: Played, text: str, published: str, strict: float
) -> None:
    for category in ("irrelevance", "live_irrelevance", "live_relevance"):
        outcome = await bfcl.judged(tasks[category], turns(text))
        right = "called" if category == "live_relevance" else "abstained"
        assert outcome.is_correct is (published == right) and outcome.method == published
        attempt = Attempt(task=tasks[category], turns=turns(text), is_truncated=False)
        column = {f"{category}/no_call_attempted": strict}
        assert measures(attempt) == ({} if category == "live_relevance" else column)


async def test_a_whole_conversation_through_the_engine(tasks: dict[str, Task], bfcl: Played) -> None:
    """Prompt, results, the user's second message and the verdict; judged again from its turns alone."""
    task, tokenizer = tasks["multi_turn_miss_func"], ByteTokenizer()
    texts = gold(task)
    agent = Agent(
        inference=ScriptedPolicy(lambda request: texts[request.turn - 1], tokenizer),
        chat=ChatFormat(tokenizer, load_template("qwen3", None), []),
        tools=Dispatcher(tools=[]),
        judge=FunctionJudge(bfcl.simulation),
        limits=RolloutLimits(max_response_tokens=9000, max_turns=200, max_tool_tokens=99, timeout_s=60.0),
        sampling=Sampling(),
        counterpart=SimulatedUser(bfcl.simulation),
    )
    key = TrajectoryKey(seed=1, step=0, task_id=task.id, sibling=0)
    trajectory = await run_trajectory(agent, task, key)
    check_trajectory(trajectory)
    assert trajectory.outcome == Scored(reward=1.0, method="turns_match")
    assert trajectory.finish_reason is FinishReason.answered
    shown = agent.chat.decode(trajectory.ids.tolist())
    assert shown.count("What about now?") == 1 and '{"lit": "red", "hours": 1}' in shown
    kept = Verdict(bucket="evaluated", penalty_error=None, penalty_format=None, advantage=None)
    record = to_record(trajectory, kept, stage="", num_answers=0, decode=agent.chat.decode)
    again = from_record(json.loads(json.dumps(record)))
    assert await bfcl.verdict(again.task, again.turns) == "turns_match"


def played(results: Sequence[str], due: Sequence[str]) -> MessageOutcome:
    return MessageOutcome(results=[(text, False) for text in results], due=due, same_state=True)


def test_a_result_counts_as_often_as_it_came() -> None:
    step = [[RED]]
    twice = [played(["a"], ["a", "a"])]
    assert judge_conversation([step], twice) is Finding.result_missing
    earlier = [played(["a"], ["a"]), played(["b"], ["a", "b"])]
    assert judge_conversation([step, step], earlier) is Finding.right
    assert judge_conversation([step, step], earlier[::-1]) is Finding.result_missing


@given(st.lists(st.sampled_from(["call", "prose", "broken", "both"]), max_size=40))
def test_messages_are_parted_by_turns_that_call_nothing(kinds: list[str]) -> None:
    texts = {"call": format_calls([RED]), "prose": PROSE, "broken": BROKEN, "both": format_calls([RED]) + BROKEN}
    messages, over = split_messages([turn(texts[kind]) for kind in kinds])
    ends = [kind != "call" for kind in kinds]
    assert over is (not kinds or ends[-1])
    assert len(messages) == sum(ends) + (not over)
    assert sum(len(steps) for steps in messages) == kinds.count("call")


def test_nothing_of_ours_is_imported_by_the_program_of_the_classes() -> None:
    text = PROGRAM.read_text()
    modules = {
        line.split()[1].partition(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))
    }
    assert modules <= sys.stdlib_module_names
    assert "eval(" not in text.replace("ast.literal_eval(", "")

"""Conversations of BFCL v3 with a made-up class: next speaker, execution and verdict."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
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
from rocstar.engine.types import (
    Attempt,
    FinishReason,
    Scored,
    Task,
    ToolResult,
    TrajectoryKey,
    Turn,
)
from rocstar.train.evaluation.benchmarks.bfcl.bfcl import (
    BFCL_V3,
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


@pytest.fixture
async def simulation() -> AsyncIterator[Simulation]:
    made = Simulation(timeout_s=30.0)
    yield made
    made.close()


async def verdict(
    task: Task, said: Sequence[Turn], simulation: Simulation, *, is_truncated: bool = False
) -> str:
    attempt = Attempt(task=task, turns=tuple(said), is_truncated=is_truncated)
    outcome = await FunctionJudge(simulation).score(attempt, deadline=None)
    assert isinstance(outcome, Scored) and outcome.is_correct == (outcome.reward == 1.0)
    assert outcome.is_correct is (outcome.method in ("turns_match", "calls_match", "called", "abstained"))
    return outcome.method


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([RED, PROSE, BLUE, DARK, PROSE], "turns_match"),
        ([RED, PROSE, [BLUE, DARK], PROSE], "turns_match"),
        ([RED, PROSE, DARK, BLUE, PROSE], "turns_match"),
        ([RED, PROSE, BLUE, PROSE], "state_differs"),
        ([RED, PROSE, BLUE, DARK, ("lamps", {}), PROSE], "turns_match"),
        ([RED, PROSE, ("nothing", {}), BLUE, DARK, PROSE], "turns_match"),
        ([PROSE, BLUE, DARK, PROSE], "nothing_called"),
        ([BROKEN, BLUE, DARK, PROSE], "nothing_called"),
        ([RED, PROSE, PROSE], "nothing_called"),
        ([RED, PROSE], "messages_not_reached"),
        ([], "messages_not_reached"),
        ([RED, PROSE, ("light", {"lamp": "blue"}), DARK, PROSE], "result_missing"),
        ([RED, PROSE, ("_load_scenario", {"scenario": {}}), BLUE, DARK, PROSE], "turns_match"),
        ([RED, PROSE, ("remove", {}), BLUE, DARK, PROSE], "turns_match"),
    ],
)
async def test_state_and_results_after_every_message(
    tasks: dict[str, Task], simulation: Simulation, said: Any, why: str
) -> None:
    assert await verdict(tasks["multi_turn_base"], turns(*said), simulation) == why


async def test_a_truncated_conversation_is_wrong(tasks: dict[str, Task], simulation: Simulation) -> None:
    said = turns(RED, PROSE, BLUE, DARK, PROSE)
    assert await verdict(tasks["multi_turn_base"], said, simulation, is_truncated=True) == "truncated"


async def test_calls_without_need_count_by_what_they_change(
    tasks: dict[str, Task], simulation: Simulation
) -> None:
    task = tasks["multi_turn_miss_param"]
    assert await verdict(task, turns(PROSE, RED, PROSE), simulation) == "turns_match"
    assert await verdict(task, turns(("lamps", {}), PROSE, RED, PROSE), simulation) == "turns_match"
    assert await verdict(task, turns(BLUE, PROSE, RED, PROSE), simulation) == "state_differs"


async def test_every_gold_is_right(tasks: dict[str, Task], simulation: Simulation) -> None:
    for category, task in tasks.items():
        texts = gold(task)
        said = turns(*([texts] if isinstance(texts, str) else texts))
        why = await verdict(task, said, simulation)
        assert why in ("turns_match", "calls_match", "abstained", "called"), category


async def test_every_near_miss_is_wrong(tasks: dict[str, Task], simulation: Simulation) -> None:
    found = {}
    for category, task in tasks.items():
        texts = near_miss(task)
        said = tuple(turns(*([texts] if isinstance(texts, str) else texts)))
        attempt = Attempt(task=task, turns=said, is_truncated=False)
        outcome = await FunctionJudge(simulation).score(attempt, deadline=None)
        assert isinstance(outcome, Scored) and outcome.reward == 0, category
        found[category] = outcome.method
    assert set(found.values()) == {"calls_differ", "nothing_called", "called", "abstained"}


async def converse(task: Task, simulation: Simulation, *said: str | Call | Sequence[Call]) -> list[Any]:
    """Return the answers to each turn of a policy with these texts."""
    user, done, answers = SimulatedUser(simulation), [], []
    for one in turns(*said):
        done.append(one)
        answer = await user.answer(task, done, deadline=None)
        answers.append(answer)
        if isinstance(answer, tuple):
            done[-1] = turn(one.text, answer)
    return answers


async def test_the_user_speaks_when_a_turn_calls_nothing(
    tasks: dict[str, Task], simulation: Simulation
) -> None:
    answers = await converse(
        tasks["multi_turn_base"], simulation, RED, ("light", {"lamp": "red"}), PROSE, [BLUE, DARK], PROSE
    )
    first, again, said, both, end = answers
    assert [r.text for r in first] == ['{"lit": "red", "hours": 1}'] and not first[0].is_error
    assert again[0].text == "Error during execution: red is lit" and again[0].status == "error"
    assert said == "Blue instead, two hours."
    assert [r.text for r in both] == ['{"lit": "blue", "hours": 2}', '{"doused": "red"}']
    assert end is None


async def test_a_turn_that_cannot_be_read_ends_the_users_message(
    tasks: dict[str, Task], simulation: Simulation
) -> None:
    spoilt = format_calls([RED]) + "\n" + BROKEN
    assert await converse(tasks["multi_turn_base"], simulation, spoilt, BROKEN) == [
        "Blue instead, two hours.",
        None,
    ]


async def test_one_message_is_over_with_its_first_turn(
    tasks: dict[str, Task], simulation: Simulation
) -> None:
    assert await converse(tasks["simple"], simulation, RED) == [None]


async def test_steps_of_a_message_are_bounded(tasks: dict[str, Task], simulation: Simulation) -> None:
    answers = await converse(tasks["multi_turn_base"], simulation, *[("lamps", {})] * (MAX_STEPS + 1))
    assert [isinstance(answer, tuple) for answer in answers] == [True] * MAX_STEPS + [False]
    assert answers[-1] is None
    looked: list[Call] = [("lamps", {})] * (MAX_STEPS + 1)
    assert await verdict(tasks["multi_turn_base"], turns(*looked), simulation) == "messages_not_reached"
    # As upstream: where that is the last message, what was done counts.
    said = turns(RED, PROSE, BLUE, DARK, *looked)
    assert await verdict(tasks["multi_turn_base"], said, simulation) == "turns_match"


async def test_long_contexts_are_loaded_as_such(tasks: dict[str, Task], simulation: Simulation) -> None:
    (answer,) = await converse(tasks["multi_turn_long_context"], simulation, ("lamps", {}))
    assert answer[0].text == "['porch', 'attic']"


@pytest.mark.parametrize("name", ["wait", "crash"])
async def test_a_call_that_does_not_end_has_no_effect(tasks: dict[str, Task], name: str) -> None:
    task = tasks["multi_turn_base"]
    simulation = Simulation(timeout_s=2.0)
    try:
        hung, lit = await converse(task, simulation, [RED, (name, {})], RED)
        assert [r.status for r in hung] == ["timeout"] * 2 and all(r.is_error for r in hung)
        assert lit[0].text == '{"lit": "red", "hours": 1}'
        said = (turn(format_calls([RED, (name, {})]), hung), *turns(RED, PROSE, BLUE, DARK, PROSE))
        assert await verdict(task, said, simulation) == "turns_match"
        # A record that lacks the results: the judge itself meets the call.
        assert await verdict(task, turns((name, {}), PROSE, RED, PROSE), simulation) == "simulation_hung"
    finally:
        simulation.close()


async def test_what_a_class_prints_is_no_answer(tasks: dict[str, Task], simulation: Simulation) -> None:
    (answer,) = await converse(tasks["multi_turn_base"], simulation, ("talk", {}))
    assert answer[0].text == "said"


async def test_an_answer_does_not_depend_on_what_was_asked_before(
    tasks: dict[str, Task], simulation: Simulation
) -> None:
    answers = [await converse(tasks["multi_turn_base"], simulation, RED) for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    both = await asyncio.gather(*(converse(tasks["multi_turn_base"], simulation, RED) for _ in range(4)))
    assert both == answers[:1] * 4


async def test_classes_that_do_not_run_are_our_failure(
    tasks: dict[str, Task], tmp_path: Path, simulation: Simulation
) -> None:
    package = make_package(tmp_path)
    (task,) = [t for t in load_tasks(package) if t.meta["category"] == "multi_turn_base"]
    (package / "eval_checker" / "multi_turn_eval" / "func_source_code" / "ticket_api.py").unlink()
    with pytest.raises(ToolFailure, match="pip install --no-deps"):
        await verdict(task, turns(RED, PROSE, BLUE, DARK, PROSE), simulation)
    assert (
        await verdict(tasks["multi_turn_base"], turns(RED, PROSE, BLUE, DARK, PROSE), simulation)
        == "turns_match"
    )


async def test_a_python_that_is_none_is_our_failure(tasks: dict[str, Task]) -> None:
    simulation = Simulation(python="/bin/false")
    with pytest.raises(ToolFailure):
        await verdict(tasks["multi_turn_base"], turns(RED, PROSE, RED, PROSE), simulation)


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
    tasks: dict[str, Task], simulation: Simulation, text: str, published: str, strict: float
) -> None:
    for category in ("irrelevance", "live_irrelevance"):
        attempt = Attempt(task=tasks[category], turns=turns(text), is_truncated=False)
        outcome = await FunctionJudge(simulation).score(attempt, deadline=None)
        assert isinstance(outcome, Scored)
        assert outcome.is_correct is (published == "abstained") and outcome.method == published
        assert measures(attempt) == {f"{category}/no_call_attempted": strict}


async def test_relevance_asks_for_a_call_that_can_be_read(
    tasks: dict[str, Task], simulation: Simulation
) -> None:
    task = tasks["live_relevance"]
    for text, right in [(format_calls([RED]), True), (PROSE, False), (BROKEN, False)]:
        attempt = Attempt(task=task, turns=turns(text), is_truncated=False)
        outcome = await FunctionJudge(simulation).score(attempt, deadline=None)
        assert isinstance(outcome, Scored) and outcome.is_correct is right
        assert measures(attempt) == {}


async def test_calls_behind_a_finished_one_without_an_end_are_no_calls(
    tasks: dict[str, Task], simulation: Simulation
) -> None:
    said = format_calls([RED]) + '\n<tool_call>\n{"name": "li'
    assert await verdict(tasks["simple"], turns(said), simulation) == "calls_match"
    assert await verdict(tasks["simple"], turns(format_calls([RED]) + BROKEN), simulation) == "undecodable"


async def test_a_whole_conversation_through_the_engine(
    tasks: dict[str, Task], simulation: Simulation
) -> None:
    """Prompt, results, the user's second message and the verdict; judged again from its turns alone."""
    texts = gold(tasks["multi_turn_miss_func"])
    tokenizer = ByteTokenizer()
    agent = Agent(
        inference=ScriptedPolicy(lambda request: texts[request.turn - 1], tokenizer),
        chat=ChatFormat(tokenizer, load_template("qwen3", None), []),
        tools=Dispatcher(tools=[]),
        judge=FunctionJudge(simulation),
        limits=RolloutLimits(max_response_tokens=9000, max_turns=200, max_tool_tokens=99, timeout_s=60.0),
        sampling=Sampling(),
        counterpart=SimulatedUser(simulation),
    )
    task = tasks["multi_turn_miss_func"]
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
    assert await verdict(again.task, again.turns, simulation) == "turns_match"


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
    texts = {
        "call": format_calls([RED]),
        "prose": PROSE,
        "broken": BROKEN,
        "both": format_calls([RED]) + BROKEN,
    }
    messages, over = split_messages([turn(texts[kind]) for kind in kinds])
    ends = [kind != "call" for kind in kinds]
    assert over is (not kinds or ends[-1])
    assert len(messages) == sum(ends) + (not over)
    assert sum(len(steps) for steps in messages) == kinds.count("call")


def test_the_set_says_what_it_is() -> None:
    assert (BFCL_V3.name, BFCL_V3.num_questions, BFCL_V3.licence) == ("bfcl_v3", 4441, "Apache-2.0")
    assert BFCL_V3.defaults.temperature == 0.0
    assert BFCL_V3.judge is FunctionJudge and BFCL_V3.counterpart is SimulatedUser


def test_nothing_of_ours_is_imported_by_the_program_of_the_classes() -> None:
    text = PROGRAM.read_text()
    modules = {
        line.split()[1].partition(".")[0]
        for line in text.splitlines()
        if line.startswith(("import ", "from "))
    }
    assert modules <= sys.stdlib_module_names
    assert "eval(" not in text.replace("ast.literal_eval(", "")

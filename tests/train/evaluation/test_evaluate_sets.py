"""Attempts at many tasks: all of them are scored, with any number in flight; time is virtual."""

import asyncio
import contextlib
import errno
import itertools
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaForCausalLM
from transformers.models.llama.configuration_llama import LlamaConfig

from rocstar.engine.chat.chat import ChatFormat, load_template
from rocstar.engine.inference.base import InferenceError, KvLoad, Sampling
from rocstar.engine.inference.embedded.embedded import EmbeddedEngine
from rocstar.engine.nodes.grants import FILL, Window
from rocstar.engine.nodes.nodes import Nodes
from rocstar.engine.progress.progress import ProgressBoard
from rocstar.engine.rollout.rollout import Agent, RolloutLimits
from rocstar.engine.tools.box import Dispatcher
from rocstar.engine.tools.python import PYTHON_SCHEMA
from rocstar.engine.types import Attempt, Failed, Group, Outcome, Scored, Task
from rocstar.train.evaluation import during_training
from rocstar.train.evaluation.evaluate_sets import TRIES, check_unscored, run_attempts
from rocstar.train.groups.journal import Journal
from rocstar.train.groups.source import Roller
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import TrainingStopped
from rocstar.train.recipe.rl_config import StageConfig
from rocstar.train.record.callbacks import Callback, Listeners
from rocstar.train.record.metrics import MetricsWriter, read_metrics
from rocstar.train.record.time_budget import TimeBudget
from rocstar.train.run import Live, Run
from tests.fakes.fake_node import FakeNode
from tests.fakes.sandbox import FakeSandbox
from tests.fakes.scripted_policy import ByteTokenizer, Reply, Request, ScriptedPolicy, VirtualClockLoop, run_virtual

TOKENIZER = ByteTokenizer()
K = 8
Made = TypeVar("Made")


async def attempt(
    roller: Roller, tasks: Sequence[Task], *, k: int, seed: int, step: int, in_flight: Window
) -> list[Group]:
    """`attempts`, all kept in the order of the tasks, those without a score too."""
    made: dict[str, Group] = {}

    async def keep(group: Group) -> None:
        made[group.task.id] = group

    await run_attempts(roller, tasks, k, seed, step, in_flight=in_flight, on_group=keep)
    return [made[task.id] for task in tasks]


class Judge:
    """All is right."""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.takes_s = takes_s

    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        if self.takes_s:
            await asyncio.sleep(self.takes_s)
        return Scored(reward=1.0, method="fake")


def agent(inference: Any, *, judge: Any = None, timeout_s: float = 3600.0) -> Agent:
    limits = RolloutLimits(max_response_tokens=50, max_turns=1, max_tool_tokens=1, timeout_s=timeout_s)
    return Agent(
        inference=inference,
        chat=ChatFormat(TOKENIZER, load_template("compact", None), [PYTHON_SCHEMA]),
        tools=Dispatcher(tools=[], sandbox=FakeSandbox({}), max_parallel_calls=1),
        judge=judge or Judge(),
        limits=limits,
        sampling=Sampling(),
    )


def scripted(script: Callable[[Request], Reply], *, slots: int = 1 << 30) -> Agent:
    return agent(ScriptedPolicy(script, TOKENIZER, max_running=slots))


def tasks(count: int) -> list[Task]:
    return [Task(id=f"t{k:03}", source="s", question=f"{k}?", answer="4") for k in range(count)]


def at_a_time(groups: int, size: int = K) -> Window:
    return Window(size=size, trajectories=lambda: groups * size)


def a_run(folder: Path, made: Agent, nodes: Nodes | None = None, *, goes_on: bool = False, **changes: Any) -> Run:
    nothing, ticks = cast("Any", None), itertools.count()
    return Run(
        recipe=Recipe(**changes),
        directory=folder,
        live=Live(agent=made, heldout={}, nodes=nodes),
        evaluation=during_training,
        publisher=cast("Any", SimpleNamespace(version=2)),
        team=nothing,
        decode=str,
        bodies=nothing,
        metrics=MetricsWriter(folder / "metrics.jsonl"),
        listeners=Listeners(Callback()),
        budget=TimeBudget(clock=lambda: float(next(ticks))),
        journal=cast("Any", SimpleNamespace(goes_on=goes_on)),
        lag=nothing,
        write_eval_page=lambda folder: None,
        open_source=nothing,
        tasks=[],
    )


STAGE = StageConfig(name="three", steps=1, max_response_tokens=50, max_turns=1, filter_rollouts=K)


class InlineLoop(VirtualClockLoop):
    """Runs work for threads immediately, in no time."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # whatever the thread would have raised is its caller's
            done.set_exception(error)
        return done


def run_inline(work: Coroutine[Any, Any, Made]) -> Made:
    """The result of the work, in virtual time, with its writes to the disk."""
    with asyncio.Runner(loop_factory=InlineLoop) as runner:
        return runner.run(work)


def filter_tasks(run: Run, count: int) -> tuple[list[str], dict[str, Any]]:
    """Return the ids of the tasks that the filter keeps, and its metrics."""
    with run.metrics:
        left = run_inline(during_training.filter_by_difficulty(run, STAGE, tasks(count)))
    row = read_metrics(run.metrics.path)[-1]
    return [task.id for task in left], {name: row[name] for name in row if name.startswith("difficulty/")}


def test_the_filter_drops_all_that_is_mastered_with_six_times_the_work_of_the_limit(tmp_path: Path) -> None:
    """200 tasks x 8 of 100 s on 8 slots: 5.6 hours of work under a limit of one, a perfect policy."""
    made = scripted(lambda _: Reply(text="4", delay_s=100.0), slots=8)
    run = a_run(tmp_path, made, engine={"max_running": 200 * K})
    left, row = filter_tasks(run, 200)
    assert (
        not left and row["difficulty/tasks_dropped"] == row["difficulty/tasks_seen"] == len(run.dropped_tasks) == 200
    )
    assert row["difficulty/failed"] == 0


def test_the_same_on_the_real_engine_with_few_slots(tmp_path: Path) -> None:
    """A slot is held for the 10 s of the judge: 200 tasks x 2 on 4 slots take 17 limits of 60 s."""
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = LlamaConfig(vocab_size=TOKENIZER.vocab_size, max_position_embeddings=4096, num_attention_heads=2, **sizes)
    model = cast("Any", LlamaForCausalLM)._from_config(config, attn_implementation="sdpa").eval()

    async def main() -> list[Task]:
        with ThreadPoolExecutor(1) as thread:
            async with EmbeddedEngine(model, max_running=4, thread=thread) as engine:
                made = agent(engine, judge=Judge(10.0), timeout_s=60.0)
                run = a_run(tmp_path, made)
                stage = STAGE.model_copy(update={"filter_rollouts": 2, "max_response_tokens": 4})
                left = await during_training.filter_by_difficulty(run, stage, tasks(200))
                assert len(run.dropped_tasks) == 200 and asyncio.get_running_loop().time() >= 1000.0
                run.metrics.__exit__(None, None, None)
                return left

    assert run_inline(main()) == []


class Killed(Exception):
    """The process ends here."""


class Dying(Judge):
    """Knows which attempts have ended, and ends the process instead of scoring one more than `most`."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.ended = most, Counter[str]()

    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        if self.ended.total() == self.most:
            raise Killed
        self.ended[f"{attempt.task.id}/{attempt.text}"] += 1
        last = attempt.text == str(K - 1)
        if last and attempt.task.id.endswith("3"):
            return Failed(kind="deadline", retryable=False, detail="too late")
        return Scored(reward=float(not (last and attempt.task.id.endswith("5"))), method="fake")


def filtered(folder: Path, judge: Judge, *, goes_on: bool, deterministic: bool) -> tuple[list[str], Any]:
    """Filter 20 tasks with 3 groups in flight."""
    policy = ScriptedPolicy(lambda r: Reply(text=str(r.sibling), delay_s=1.0 + r.seed % 7), TOKENIZER)
    engine = {"max_running": 3 * K, "deterministic": deterministic}
    folder.mkdir(exist_ok=True)
    return filter_tasks(a_run(folder, agent(policy, judge=judge), goes_on=goes_on, engine=engine), 20)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("at", [0, 1, 7, 23, 24, 50, 81, 120, 158, 159])
def test_a_filter_that_is_killed_rolls_no_attempt_out_twice(tmp_path: Path, at: int, deterministic: bool) -> None:
    """Killed behind `at` of 160 attempts, of which 2 have no score. The journal holds attempts; with equal
    bits, waves of 24."""
    expected = filtered(tmp_path / "whole", Dying(-1), goes_on=False, deterministic=deterministic)
    judges = [Dying(at), Dying(-1), Dying(-1)]
    with pytest.raises(ExceptionGroup):
        filtered(tmp_path / "killed", judges[0], goes_on=False, deterministic=deterministic)
    assert filtered(tmp_path / "killed", judges[1], goes_on=True, deterministic=deterministic) == expected
    assert expected[0] == ["t003", "t005", "t013", "t015"] and expected[1]["difficulty/failed"] == 2
    lost = at % (3 * K) if deterministic else 0
    assert (judges[0].ended + judges[1].ended).total() == 160 + lost
    assert len(judges[0].ended & judges[1].ended) == lost
    # After the filter a resume reads its result and rolls nothing out.
    assert filtered(tmp_path / "killed", judges[2], goes_on=True, deterministic=deterministic) == expected
    assert not judges[2].ended


def test_a_group_that_ended_on_another_node_is_not_rolled_out_again(tmp_path: Path) -> None:
    load = KvLoad(total=1 << 20, used=0, running=0, waiting=0)

    async def life(seconds: float, judge: Dying) -> list[str]:
        """Groups that ended on the other node, of a filter that is cancelled after so many seconds."""
        made = agent(ScriptedPolicy(lambda r: Reply(text=str(r.sibling), delay_s=5.0), TOKENIZER), judge=judge)
        node = FakeNode("1", made)
        async with Nodes([node], home_load=lambda: load, part=4, max_groups=1) as nodes:
            run = a_run(tmp_path, made, nodes, goes_on=True, engine={"max_running": K})
            with run.metrics, contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await during_training.filter_by_difficulty(run, STAGE, tasks(20))
        return node.ended

    judges = [Dying(-1), Dying(-1)]
    assert run_inline(life(22.0, judges[0])) and run_inline(life(3600.0, judges[1]))
    assert 2 * K < judges[0].ended.total() < 20 * K and not judges[0].ended & judges[1].ended
    assert (judges[0].ended + judges[1].ended).total() == 20 * K


@pytest.mark.parametrize("changes", [{"run": {"seed": 9}}, {"goes_on": False}])
def test_the_filter_of_another_recipe_or_run_is_made_again(tmp_path: Path, changes: dict[str, Any]) -> None:
    for options, expected in [({}, 16), ({}, 0), (changes, 16)]:
        judge = Dying(-1)
        policy = ScriptedPolicy(lambda r: Reply(text=str(r.sibling)), TOKENIZER)
        filter_tasks(a_run(tmp_path, agent(policy, judge=judge), **{"goes_on": True, **options}), 2)
        assert judge.ended.total() == expected


def test_what_may_be_tried_again_is_until_a_filter_has_scores(tmp_path: Path) -> None:
    """A lost server ends no run and drops no task; the resume asks the new one."""
    lost = Flaky(lambda _: 99)
    for script, left in [(lost, 5), (Flaky(lambda _: 0), 0)]:
        kept, row = filter_tasks(a_run(tmp_path, scripted(script), goes_on=True), 5)
        assert len(kept) == left and row["difficulty/failed"] == K * left


def test_no_more_groups_are_in_flight_than_the_window_has_and_each_ends_once() -> None:
    policy = ScriptedPolicy(lambda r: Reply(text="4", delay_s=1.0 + r.seed % 7), TOKENIZER)
    seen: list[str] = []

    async def look(group: Group) -> None:
        assert policy.load().running <= 3 * K
        seen.append(group.task.id)

    board = ProgressBoard()

    async def main() -> None:
        with board.installed():
            running = asyncio.create_task(
                run_attempts(Roller(agent=agent(policy)), tasks(20), K, 0, 0, in_flight=at_a_time(3), on_group=look)
            )
            await asyncio.sleep(0.5)
            (work,) = board.works
            assert (work.what, work.unit, work.total) == ("evaluation", "tasks", 20)
            assert policy.load().running == 3 * K
            await running
            assert work.done == 20

    run_virtual(main())
    assert sorted(seen) == [task.id for task in tasks(20)] and seen != sorted(seen)


class Flaky:
    """Each attempt fails `failures` times, and then answers by its noise."""

    def __init__(self, failures: Callable[[Request], int], *, retryable: bool = True) -> None:
        self.failures, self.retryable = failures, retryable
        self.tries: Counter[str] = Counter()

    def __call__(self, request: Request) -> Reply:
        self.tries[request.request_id] += 1
        if self.tries[request.request_id] <= self.failures(request):
            return Reply(error=InferenceError("replica_lost", "it is gone", retryable=self.retryable))
        return Reply(text=f"{request.seed}")


def made_of(script: Callable[[Request], Reply], *, whole_groups: bool = False) -> list[Group]:
    roller = Roller(agent=scripted(script), whole_groups=whole_groups)
    return run_virtual(attempt(roller, tasks(5), k=K, seed=3, step=2, in_flight=at_a_time(2)))


@pytest.mark.parametrize("whole_groups", [False, True])
def test_what_failed_is_tried_again_under_its_own_noise(whole_groups: bool) -> None:
    expected = made_of(Flaky(lambda _: 0))
    flaky = Flaky(lambda request: TRIES - 1 if request.sibling % 3 == 1 else 0)
    assert made_of(flaky, whole_groups=whole_groups) == expected
    others = {count for name, count in flaky.tries.items() if int(name[-1]) % 3 != 1}
    assert others == {TRIES if whole_groups else 1}


def test_what_fails_too_often_or_for_good_is_counted_and_the_rest_is_there() -> None:
    for flaky, tries in [(Flaky(lambda _: 99), TRIES), (Flaky(lambda _: 99, retryable=False), 1)]:
        groups = made_of(flaky)
        assert [group.task.id for group in groups] == [task.id for task in tasks(5)]
        assert all(isinstance(t.outcome, Failed) for group in groups for t in group.trajectories)
        assert set(flaky.tries.values()) == {tries}


def test_more_than_one_in_a_hundred_without_a_score_ends_an_evaluation() -> None:
    check_unscored(Counter({"replica_lost": 2}), total=200)
    message = r"3 of 200 attempts stayed without a score, more than 1%: .*: 3 replica_lost$"
    with pytest.raises(TrainingStopped, match=message):
        check_unscored(Counter({"replica_lost": 3}), total=200)


def test_a_bug_in_one_group_is_raised_and_ends_the_others() -> None:
    policy = ScriptedPolicy(
        lambda r: Reply(text="4", delay_s=10.0, error=KeyError("a bug") if r.task_id == "t001" else None), TOKENIZER
    )
    work = attempt(Roller(agent=agent(policy)), tasks(9), k=K, seed=0, step=0, in_flight=at_a_time(3))
    with pytest.raises(ExceptionGroup, match="unhandled"):
        run_virtual(work)
    assert policy.load().running == policy.load().waiting == 0


def test_every_node_takes_part_and_the_groups_are_those_of_one() -> None:
    script = lambda r: Reply(text=f"{r.seed}", delay_s=5.0)  # noqa: E731
    load = KvLoad(total=1 << 20, used=0, running=0, waiting=0)
    others = [FakeNode(str(k), scripted(script)) for k in (1, 2)]
    home = scripted(script)

    async def main() -> list[Group]:
        async with Nodes(others, home_load=lambda: load, part=4, max_groups=2) as nodes:
            roller = Roller(agent=home, nodes=nodes)
            return await attempt(roller, tasks(12), k=K, seed=0, step=0, in_flight=at_a_time(6))

    expected = attempt(Roller(agent=scripted(script)), tasks(12), k=K, seed=0, step=0, in_flight=at_a_time(1))
    assert run_virtual(main()) == run_virtual(expected)
    assert all(node.ended for node in others)


@given(size=st.integers(1, 64), slots=st.integers(0, 500))
def test_the_window_holds_what_fills_the_slots(size: int, slots: int) -> None:
    most = Window(size=size, trajectories=lambda: slots).most
    assert most >= 1 and most * size >= slots and (most == 1 or (most - 1) * size < slots)


def test_where_kv_is_known_the_window_grows_as_answers_prove_short() -> None:
    window = Window(size=4, kv_tokens=lambda: 8000, limit_tokens=1000)
    assert window.most == FILL * 8000 / (4 * 1000)
    made = scripted(lambda _: Reply(text="4"))
    (group,) = run_virtual(attempt(Roller(agent=made), tasks(1), k=4, seed=0, step=0, in_flight=Window(size=4)))
    window.ended(group)
    assert window.most > FILL * 8000 / (4 * 1000)
    assert len(group.scored) == 4


def test_a_filter_whose_journal_cannot_be_written_ends_with_one_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Journal, "_append", full)
    with pytest.raises(TrainingStopped, match="cannot be written"):
        filtered(tmp_path, Dying(-1), goes_on=False, deterministic=False)

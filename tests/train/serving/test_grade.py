"""`rocstar grade`: rows in, verdicts out, in order, with bounded memory and one clear error."""

import asyncio
import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocstar.engine.types import Attempt, Failed, Outcome, Scored, Task, Turn
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.serving import grade as grade_module
from rocstar.train.serving.grade import WAITING, grade_file, graded

from ...warm_python import warm


def row(number: int) -> Attempt:
    turn = Turn(start=0, end=1, text=str(number), stopped=True)
    return Attempt(task=Task(id="t", source="s", question="", answer=""), turns=(turn,), is_truncated=False)


class Held:
    """A judge that answers when it is told to, and counts what it was given."""

    def __init__(self) -> None:
        self.given: dict[int, asyncio.Future[Outcome]] = {}

    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        number = int(attempt.text)
        self.given[number] = asyncio.get_running_loop().create_future()
        return await self.given[number]


async def until(condition) -> None:  # type: ignore[no-untyped-def]
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to that")


async def test_rows_are_answered_in_order_and_read_no_further_than_the_bound() -> None:
    read: list[int] = []

    def rows() -> Iterator[Attempt]:
        for number in range(10**9):
            read.append(number)
            yield row(number)

    judge, found = Held(), []

    async def collect() -> None:
        async for outcome in graded(rows(), judge):
            assert isinstance(outcome, Scored)
            found.append(outcome.reward)

    collecting = asyncio.create_task(collect())
    await until(lambda: len(judge.given) == WAITING)
    assert max(read) <= WAITING, "one more than may wait is read, and held back"
    judge.given[1].set_result(Scored(reward=1.0, method="m"))
    judge.given[0].set_result(Scored(reward=0.0, method="m"))
    await until(lambda: len(found) == 2)
    assert found == [0.0, 1.0]
    await until(lambda: len(judge.given) == WAITING + 2)
    collecting.cancel()


async def test_an_answer_does_not_wait_for_the_next_row() -> None:
    """A caller that writes a row and waits for its answer before the next one is served."""
    judge = Held()
    answered = asyncio.Event()
    loop = asyncio.get_running_loop()

    def rows() -> Iterator[Attempt]:
        yield row(0)
        asyncio.run_coroutine_threadsafe(answered.wait(), loop).result()

    outcomes = graded(rows(), judge)
    first = asyncio.create_task(anext(outcomes))
    await until(lambda: 0 in judge.given)
    judge.given[0].set_result(Scored(reward=1.0, method="m"))
    assert await first == Scored(reward=1.0, method="m")
    answered.set()
    assert [outcome async for outcome in outcomes] == []


@pytest.fixture
def no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """These rows are decided by rules: no zygote is started."""
    monkeypatch.setattr(grade_module, "SandboxPool", lambda _: contextlib.nullcontext())


@pytest.mark.usefixtures("no_pool")
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "is not JSON"),
        ("[1]", "is list, not an object"),
        ('{"text": "x"}', "'answer' is missing"),
        ('{"answer": "42"}', "'text' is missing"),
        ('{"answer": ["42"], "text": "x"}', "'answer' is list"),
        ('{"answer": true, "text": "x"}', "'answer' is bool"),
        ('{"answer": "42", "text": "' + "x" * 200 + '"}', "is longer than"),
    ],
)
def test_a_bad_row_is_named_behind_the_answers_before_it(
    line: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grade_module, "MAX_LINE_BYTES", 150)
    path, wrote = tmp_path / "rows.jsonl", []
    good = json.dumps({"answer": 42, "text": "<answer>\\boxed{42.0}</answer>"})
    path.write_text(f"{good}\n\n{line}\n{good}\n")
    with pytest.raises(ConfigError, match=f"line 3 of .*{says}"):
        grade_file(str(path), mode="strict", write=wrote.append)
    assert [json.loads(text) for text in wrote] == [{"reward": 1.0, "method": "numeric"}]


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nope.*No such file"):
        grade_file(str(tmp_path / "nope"), mode="strict")


@pytest.mark.usefixtures("no_pool")
def test_a_row_that_cannot_be_graded_has_no_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
            return Failed(kind="verifier_timeout", retryable=True, detail="why")

    monkeypatch.setattr(grade_module, "make_judge", lambda *_: Failing())
    path, wrote = tmp_path / "rows.jsonl", []
    path.write_text('{"answer": "42", "text": "x"}\n')
    assert grade_file(str(path), mode="strict", write=wrote.append) == 1
    assert [json.loads(text) for text in wrote] == [{"reward": None, "method": "verifier_timeout", "detail": "why"}]


@pytest.mark.parametrize(("mode", "rewards"), [("strict", [1.0, 0.0, 1.0, 0.0]), ("fused", [1.0, 1.0, 1.0, 0.0])])
def test_the_command_reads_standard_input(mode: str, rewards: list[float]) -> None:
    boxes = ("42", "4200", "x = 42", "41")
    lines = [json.dumps({"answer": "42", "text": f"<answer>\\boxed{{{box}}}</answer>"}) for box in boxes]
    program = "import sys; from rocstar.train.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [str(warm().executable), "-c", program, "grade", "-", "--mode", mode]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["reward"] for line in done.stdout.splitlines()] == rewards

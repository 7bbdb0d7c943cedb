"""The stand-ins themselves: the clock jumps, the tokenizer is lossless, the script is followed."""

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.inference.base import Generation, InferenceError, Sampling, StopReason
from tests.fakes.scripted_policy import (
    ByteTokenizer,
    Reply,
    ScriptedPolicy,
    VirtualClockLoop,
    logprob_of,
    run_virtual,
)

TOKENIZER = ByteTokenizer()
STOP = TOKENIZER.id_of("<|im_end|>")


def test_sleeping_takes_no_time_but_keeps_its_order() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        order: list[float] = []

        async def sleeper(seconds: float) -> None:
            await asyncio.sleep(seconds)
            order.append(loop.time())

        async with asyncio.TaskGroup() as group:
            for seconds in (7200.0, 60.0, 1e-3, 90_000.0):
                group.create_task(sleeper(seconds))
        assert order == pytest.approx([1e-3, 60.0, 7200.0, 90_000.0])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(600):
                await asyncio.Event().wait()
        assert loop.time() == pytest.approx(90_600.0)

    run_virtual(main())


def test_threads_processes_and_sockets_still_work() -> None:
    async def main() -> None:
        assert await asyncio.to_thread(lambda: (time.sleep(0.01), 7)[1]) == 7
        process = await asyncio.create_subprocess_exec("true")
        assert await process.wait() == 0
        assert asyncio.get_running_loop().time() == 0.0

    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        runner.run(main())


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_tokenizer_is_lossless(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_tokenizer_knows_its_special_tokens() -> None:
    tokenizer = ByteTokenizer(markup=["<tool_call>"], corpus=["aaaa bbbb"] * 9, vocab_size=260)
    assert tokenizer.encode("a<|im_end|><tool_call>b")[1:3] == [
        tokenizer.id_of("<|im_end|>"),
        tokenizer.id_of("<tool_call>"),
    ]
    assert tokenizer.vocab_size == 260 + 4 and len(tokenizer.encode("aaaa")) < 4
    assert TOKENIZER.decode([STOP, 5], skip_special_tokens=True) == TOKENIZER.decode([5])
    with pytest.raises(AssertionError, match="no token"):
        tokenizer.id_of("nothing")
    assert ByteTokenizer(special=()).eos_token is None


async def ask(policy: ScriptedPolicy, name: str = "s0/a/b/1", **changes: object) -> Generation:
    arguments = {"max_new_tokens": 99, "deadline": None} | changes
    return await policy.generate(
        [1, 2],
        stop_ids=frozenset({STOP}),
        sampling=Sampling(),
        seed=0,
        request_id=name,
        **arguments,  # type: ignore[arg-type]
    )


async def test_script_is_read_by_task_sibling_and_turn() -> None:
    policy = ScriptedPolicy({("a/b", 1, 1): "one", ("a/b", 1, 2): Reply(text="two")}, TOKENIZER)
    for turn, text in enumerate(["one", "two"], 1):
        got = await ask(policy)
        assert TOKENIZER.decode(got.ids) == text + "<|im_end|>" and got.finish is StopReason.stop
        assert got.logprobs == tuple(map(logprob_of, got.ids))
        assert (policy.requests[-1].turn, policy.requests[-1].task_id) == (turn, "a/b")
    with pytest.raises(KeyError):
        await ask(policy)
    policy.release("s0/a/b/1")
    assert TOKENIZER.decode((await ask(policy)).ids) == "one<|im_end|>", "a released name begins again"


async def test_reply_that_does_not_stop_goes_round_until_the_limit() -> None:
    policy = ScriptedPolicy(lambda request: Reply(text="ab", stops=False), TOKENIZER)
    got = await ask(policy, max_new_tokens=5)
    assert (TOKENIZER.decode(got.ids), got.finish) == ("ababa", StopReason.length)


async def test_stop_token_inside_a_script_ends_the_turn() -> None:
    policy = ScriptedPolicy(lambda request: "a<|im_end|>b", TOKENIZER)
    assert TOKENIZER.decode((await ask(policy)).ids) == "a<|im_end|>"


async def test_script_without_words_is_a_mistake_of_the_test() -> None:
    with pytest.raises(AssertionError, match="nothing to say"):
        await ask(ScriptedPolicy(lambda request: Reply(stops=False), TOKENIZER))
    with pytest.raises(AssertionError, match="needs a tokenizer"):
        await ask(ScriptedPolicy(lambda request: "a"))


def test_delays_aborts_and_failures_on_the_clock() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        error = InferenceError("engine_stopped", "x", retryable=True)
        policy = ScriptedPolicy(
            lambda r: Reply(text="abcd", delay_s=10.0, error=error if r.sibling else None),
            TOKENIZER,
            token_s=1.0,
        )
        assert len((await ask(policy, "s0/a/0")).ids) == 5 and loop.time() == 15.0
        with pytest.raises(InferenceError):
            await ask(policy, "s0/a/1")
        assert loop.time() == 25.0
        for after_s, written in [(5.0, 0), (12.5, 2)]:
            running = asyncio.create_task(ask(policy, "s0/a/0"))
            await asyncio.sleep(after_s)
            await policy.abort("s0/a/0")
            got = await running
            assert (got.finish, len(got.ids)) == (StopReason.aborted, written)
        with pytest.raises(TimeoutError):
            await ask(policy, "s0/a/0", deadline=loop.time() + 11.0)

    run_virtual(main())

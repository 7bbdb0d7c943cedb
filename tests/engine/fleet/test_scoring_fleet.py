"""How likely given ids are, behind a fleet: as one replica says, and another where that one fails."""

import asyncio
from typing import Any

import pytest

from rocstar.engine.fleet.fleet import Fleet, FleetLimits
from rocstar.engine.fleet.scoring_fleet import ScoringFleet
from rocstar.engine.inference.base import InferenceError, PromptScores, Sampling, ScoresPrompts
from rocstar.engine.scheduling.policies import make_policy
from tests.fakes.scripted_policy import ByteTokenizer, Reply, ScriptedPolicy, on_virtual_time

IDS = [5, 6, 7, 8]
ASK: dict[str, Any] = {"sampling": Sampling(), "deadline": None}


class Scorer(ScriptedPolicy):
    """Scores when `gate` is set; `fault` is raised instead."""

    def __init__(self) -> None:
        super().__init__(lambda request: Reply(text="x"), ByteTokenizer(), token_s=0.0)
        self.asked: list[str] = []
        self.aborted: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.fault: InferenceError | None = None

    async def score(self, ids: list[int], *, request_id: str, **rest: Any) -> PromptScores:
        self.asked.append(request_id)
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        return await super().score(ids, request_id=request_id, **rest)

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        self.fault = InferenceError("aborted", request_id, retryable=True)
        self.gate.set()
        await super().abort(request_id)


def fleet_of(*made: Scorer) -> ScoringFleet:
    return ScoringFleet(made, policy=make_policy("static"), limits=FleetLimits(turn_timeout_s=30.0))


@on_virtual_time
async def test_a_score_is_that_of_one_replica_and_they_take_turns() -> None:
    made = [Scorer(), Scorer()]
    alone = await Scorer().score(IDS, request_id="a", **ASK)
    async with fleet_of(*made) as fleet:
        assert isinstance(fleet, ScoresPrompts)
        for one in made:
            one.gate.clear()
        both = [asyncio.ensure_future(fleet.score(IDS, request_id=name, **ASK)) for name in "ab"]
        await asyncio.sleep(1)
        assert [len(one.asked) for one in made] == [1, 1]
        for one in made:
            one.gate.set()
        assert await asyncio.gather(*both) == [alone, alone]
        assert not fleet._scoring
    assert not isinstance(Fleet(made, policy=make_policy("static")), ScoresPrompts)


@on_virtual_time
async def test_another_one_scores_where_one_fails_or_hangs() -> None:
    first, second = Scorer(), Scorer()
    async with fleet_of(first, second) as fleet:
        first.fault = InferenceError("replica_lost", "gone", retryable=True)
        assert (await fleet.score(IDS, request_id="a", **ASK)).logprobs
        first.fault = None
        first.gate.clear()
        assert (await fleet.score(IDS, request_id="b", **ASK)).logprobs
        assert first.asked == second.asked == ["a", "b"]
        second.gate.clear()
        with pytest.raises(InferenceError, match="replicas_failed"):
            await fleet.score(IDS, request_id="c", **ASK)


@on_virtual_time
async def test_a_refusal_an_abort_and_a_deadline_end_it() -> None:
    first, second = Scorer(), Scorer()
    async with fleet_of(first, second) as fleet:
        with pytest.raises(InferenceError) as caught:
            await fleet.score([], request_id="a", **ASK)
        assert not caught.value.retryable and second.asked == []
        first.gate.clear()
        late = {**ASK, "deadline": asyncio.get_running_loop().time() + 5}
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await fleet.score(IDS, request_id="b", **late)
        scoring = asyncio.ensure_future(fleet.score(IDS, request_id="c", **ASK))
        await asyncio.sleep(1)
        await fleet.abort("c")
        with pytest.raises(InferenceError, match="aborted"):
            await scoring
        assert first.aborted == ["c"] and second.asked == [] and not fleet._scoring

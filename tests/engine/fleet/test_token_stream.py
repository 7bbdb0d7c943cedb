"""Through a fleet, too, tokens are told as they come: each once, in order, whoever writes them."""

import asyncio
from functools import partial
from typing import Any

import pytest

from rocstar.engine.fleet.fleet import Fleet
from rocstar.engine.inference.base import Generation, InferenceError, TellsTokens
from rocstar.engine.scheduling.policies import make_policy
from tests.fakes import asking
from tests.fakes.fake_replica import FakeReplica, Scripts
from tests.fakes.scripted_policy import run_virtual

TURNS = [list(range(10, 30)), list(range(40, 45))]


class Telling(FakeReplica):
    """Tells tokens. `dies_after` holds, for the replicas that are to die, how many they tell before."""

    dies_after: list[int]

    def on_tokens(self, request_id: str, heard: Any) -> None:
        self.heard = heard

    async def generate(self, ids: list[int], *, request_id: str, **rest: Any) -> Generation:
        if self.dies_after:
            said = self.scripts.rest_of_turn(request_id, ids)[: self.dies_after.pop()]
            for place, token in enumerate(said):
                self.heard(place, token, -1.0)
            self.kill()
            raise InferenceError("connection_lost", "the server is gone", retryable=True)
        piece = await super().generate(ids, request_id=request_id, **rest)
        for place, token in enumerate(piece.ids):
            self.heard(place, token, -1.0)
        return piece


async def two_turns(made: list[FakeReplica], *, cut_s: float | None = None) -> tuple[Any, Any]:
    """What was told of two turns, and what they are."""
    told: list[tuple[int, int]] = []
    ask = partial(asking.ask, max_new_tokens=50, stop_ids=frozenset({29, 44}))
    async with Fleet(made, policy=make_policy("static")) as fleet:
        assert isinstance(fleet, TellsTokens)
        fleet.on_tokens("s0/t/0", lambda place, token, _: told.append((place, token)))
        if cut_s is not None:
            for replica in made:
                asyncio.get_running_loop().call_later(cut_s, replica.cut_all)
        first = await ask(fleet, [1, 2])
        before, told[:] = list(told), []
        second = await ask(fleet, [1, 2, *first.ids, 3])
        fleet.release("s0/t/0")
        assert not fleet._listeners
    return [before, told], [list(enumerate(one.ids)) for one in (first, second)]


def telling(*dies_after: int) -> list[FakeReplica]:
    scripts, deaths = Scripts(lambda request_id: TURNS), list(dies_after)
    made = [Telling(scripts, token_s=0.05) for _ in range(3)]
    for replica in made:
        replica.dies_after = deaths
    return list(made)


@pytest.mark.parametrize("dies_after", [(), (3,), (20,), (2, 7), (7, 2)])
def test_a_turn_that_goes_on_elsewhere_is_told_once(dies_after: tuple[int, ...]) -> None:
    told, written = run_virtual(two_turns(telling(*dies_after)))
    assert told == written and [len(turn) for turn in written] == [20, 5]


def test_a_turn_that_was_cut_goes_on_where_it_was() -> None:
    made = telling()
    told, written = run_virtual(two_turns(made, cut_s=0.5))
    assert told == written and len(written[0]) == 20
    assert sum(len(replica.requests) for replica in made) == 3, "the scenario must cut"


def test_what_tells_nothing_is_told_when_it_ends() -> None:
    scripts = Scripts(lambda request_id: TURNS)
    told, written = run_virtual(two_turns([FakeReplica(scripts, token_s=0.05)]))
    assert told == written

"""A trajectory's page: the numbers are the record's, bit by bit, and what is hidden stays so."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from rocstar.engine.record.json_record import from_record
from rocstar.engine.record.learned import LearnedStep
from rocstar.engine.types import HIDDEN
from rocstar.train.reading.view.conversation import (
    PAGE_TOKENS,
    WithheldError,
    check_shown,
    conversation,
    overview,
    tokens,
)
from rocstar.train.reading.view.listing import Listing
from rocstar.train.reading.view.trajectory_filter import search
from rocstar.train.reading.view.viewed_run import ViewedRun, records_of
from tests.fakes.json_lines import read_folder

from .view_runs import MadeSibling, groups_of, trajectory, write_step


def no_texts(ids: object) -> None:
    return None


def test_tokens_are_those_of_the_record(viewed: Path) -> None:
    for record in read_folder(viewed / "trajectories"):
        whole = from_record(record)
        cut = len(record["ids"]) // 2
        parts = [
            tokens(record, no_texts, None, start=0, stop=cut),
            tokens(record, no_texts, None, start=cut, stop=10**9),
        ]
        assert parts[0]["learner"] is None
        joined = {name: [*parts[0][name], *parts[1][name]] for name in ("ids", "logprobs", "origins", "advantages")}
        assert joined["ids"] == record["ids"] and joined["logprobs"] == record["logprobs"]
        mask = [origin == "policy" for origin in joined["origins"]]
        assert mask == whole.loss_mask().tolist()
        given = record["advantage"]
        assert joined["advantages"] == [given if mine and given is not None else None for mine in mask]
        versions = [*parts[0]["versions"], *parts[1]["versions"]]
        assert versions == [None] * 4 + [record["policy_version"]] * (len(versions) - 4)


def test_what_the_learner_made_of_a_token_stands_at_it(viewed: Path) -> None:
    record = next(one for one in read_folder(viewed / "trajectories") if one["decision"]["kept"])
    whole = from_record(record)
    learned = LearnedStep(viewed / "trajectories" / "step_000001.columns").find(record["id"])
    assert learned is not None
    mask, logprobs = whole.loss_mask().tolist(), record["logprobs"]
    joined: dict[str, list[float | None]] = {}
    for start, stop in ((0, 6), (6, 11), (11, 10**9)):
        told = tokens(record, no_texts, learned, start=start, stop=stop)["learner"]
        for name, values in told.items():
            joined.setdefault(name, []).extend(values)
    assert all(len(values) == len(mask) for values in joined.values())
    own = iter(range(len(mask)))
    for place, mine in enumerate(mask):
        found = {name: values[place] for name, values in joined.items()}
        if not mine:
            assert set(found.values()) == {None}
            continue
        k = next(own)
        gap, log_ratio = -0.25 * (k % 2), 0.5 * (k % 3 == 0)
        assert found["logprobs"] == pytest.approx(logprobs[place] + gap, abs=1e-6)
        assert found["importance"] == pytest.approx(math.exp(gap), rel=1e-5)
        assert (found["ratios"], found["codes"]) == (pytest.approx(math.exp(log_ratio)), 2 * (k % 3 == 0))
        assert found["entropies"] == pytest.approx(1.0, abs=0.02)
    measures = overview(record, learned, 5)["measures"]
    assert list(measures) == ["surprise", "entropy", "gap", "ratio", "clip"]
    assert max(filter(None, measures["gap"]["max"])) == 0.25
    short = replace(learned, gaps=learned.gaps[:-1])
    assert tokens(record, no_texts, short, start=0, stop=9)["learner"] is None, "those of another trajectory"


def test_advantages_by_token_stand_at_the_tokens_of_the_policy(viewed: Path) -> None:
    record = next(iter(read_folder(viewed / "trajectories")))
    policy = from_record(record).loss_mask()
    record["advantage"] = [k / 8 for k in range(int(policy.sum()))]
    expected = iter(record["advantage"])
    whole = [next(expected) if mine else None for mine in policy]
    for start in (0, 5, 9, 20):
        assert tokens(record, no_texts, None, start=start, stop=10**9)["advantages"] == whole[start:]
    assert conversation(record)["advantage"] == [0.0, (int(policy.sum()) - 1) / 8]


def test_one_answer_has_a_bound_and_an_overview_has_all(tmp_path: Path) -> None:
    task = groups_of()[0][0]
    write_step(
        tmp_path, 1, [(task, [MadeSibling(correct=True, calls=3), MadeSibling(correct=False)])], num_tokens=5000
    )
    record = next(iter(read_folder(tmp_path / "trajectories")))
    told = tokens(record, no_texts, None, start=0, stop=10**9)
    assert len(told["ids"]) == PAGE_TOKENS and told["total"] == len(record["ids"]) == 20_013
    parts = overview(record, None, 100)
    (surprise,) = parts["measures"].values()
    assert parts["edges"][0] == 0 and parts["edges"][-1] == 20_013 and len(surprise["max"]) == 100
    assert max(filter(None, surprise["max"])) == -min(p for p in record["logprobs"] if p is not None)
    assert set(parts["origins"]) == {"policy"}


def test_calls_stand_in_their_places(viewed: Path) -> None:
    record = next(iter(read_folder(viewed / "trajectories")))
    told = conversation(record)
    first = told["turns"][0]["pieces"]
    assert first[0] == "Call 0.\n" and first[1]["name"] == "python" and first[1]["is_error"]
    assert first[1]["arguments"] == [(None, "print(0)")] and first[1]["result"] == "result 0"
    assert told["given"] == "0" and told["failed"] is None


def test_what_is_hidden_is_withheld_until_it_is_revealed(viewed: Path) -> None:
    hidden = [r for r in read_folder(viewed / "trajectories") if r["task"].get("meta", {}).get(HIDDEN)]
    assert len(hidden) == 6
    with pytest.raises(WithheldError, match="--reveal"):
        check_shown(hidden[0], reveal=False)
    check_shown(hidden[0], reveal=True)


def looked_for(viewed: Path, text: str, *, reveal: bool = False) -> list[dict[str, str]]:
    """All hits, a record for each slice."""
    listing = Listing()
    listing.refresh(records_of(viewed))
    hits, start, ticks = [], 0, iter(range(10_000))
    while start is not None:
        found = search(
            listing, np.arange(len(listing.rows)), text, start=start, reveal=reveal, clock=lambda: float(next(ticks))
        )
        assert found["looked"] == start + 1, "a slice that is over looks at one record and no more"
        hits += found["hits"]
        start = found["next"]
    return hits


def test_a_search_goes_on_slice_by_slice_and_finds_every_record_once(viewed: Path) -> None:
    hits = looked_for(viewed, "RESULT 1")
    assert [(hit["step"], hit["sibling"]) for hit in hits] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert {hit["found"] for hit in hits} == {"result 1"} and {hit["where"] for hit in hits} == {"result of turn 2"}
    assert not looked_for(viewed, "segments"), "what only the form of a record says is no hit"
    assert not looked_for(viewed, "hidden question") and len(looked_for(viewed, "hidden question", reveal=True)) == 6


def test_a_search_finds_what_json_escapes(tmp_path: Path) -> None:
    made = MadeSibling(correct=True)
    text = 'quo"te\\ é\nline \ud800'
    write_step(tmp_path, 1, [(groups_of()[0][0], [made, MadeSibling(correct=False)])], text=text)
    assert trajectory(made, step=1, task=groups_of()[0][0], sibling=0, text=text)[1][1].count(text)
    for part in ('o"te\\', "é\nline", "\ud800"):
        assert len(looked_for(tmp_path, part)) == 2


def test_texts_of_tokens_come_from_the_last_checkpoint(tmp_path: Path) -> None:
    texts = ViewedRun("run", tmp_path).texts
    assert texts([0, 1]) is None, "no checkpoint is there yet"
    for step, words in (("step_1", {"old": 0}), ("step_2", {"a": 0, "b": 1}), ("step_3", {"torn": 0})):
        folder = tmp_path / "checkpoints" / step
        folder.mkdir(parents=True)
        Tokenizer(WordLevel(words, unk_token=next(iter(words)))).save(str(folder / "tokenizer.json"))
        if step != "step_3":
            (folder / "COMPLETE").touch()
    assert texts([1, 0, 1]) == ["b", "a", "b"]


def test_turns_calls_and_the_trajectory_have_their_times(viewed: Path) -> None:
    record = next(iter(read_folder(viewed / "trajectories")))  # two calls
    told = conversation(record)
    assert told["turns"][0]["written"] == [0.5, 1.5] and told["turns"][0]["ran"] == [0.5]
    assert told["times"]["writing_s"] == 3.0 and told["times"]["tools_s"] == 1.0


def test_a_record_without_times_has_none(viewed: Path) -> None:
    record = {**next(iter(read_folder(viewed / "trajectories")))}
    del record["times"]
    told = conversation(record)
    assert told["times"] is None
    assert told["turns"][0]["written"] is None and told["turns"][0]["ran"] == []

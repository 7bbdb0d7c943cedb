"""A trajectory of several sequences: its record, its rows in the learner, its scores, and where it continues."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rocstar.engine.record.columns import decode_frame, encode_frame
from rocstar.engine.record.json_record import Verdict, from_record, to_record
from rocstar.engine.record.learned import LearnedStep, LearnedTokens, write_learned
from rocstar.engine.record.reading import write_records
from rocstar.engine.rollout.rollout import POLICY_TIMEOUT
from rocstar.engine.types import Failed, Group, Origin, Trajectory
from rocstar.train.groups.advantages import sample_of
from rocstar.train.groups.from_rollouts import _check_whole
from rocstar.train.groups.selection import select
from rocstar.train.learner.batch import pack, policy_examples
from rocstar.train.reading.view.conversation import conversation, tokens
from rocstar.train.served.chatting import recorded_start
from tests.fakes.trajectories import FakeTurn, branched_trajectory, make_trajectory

from .batches import config

BRANCHED, PLAIN = branched_trajectory(), make_trajectory(FakeTurn(ids=(2, 3)), sibling=1)
VERDICT = Verdict(bucket="kept", penalty_error=0.0, penalty_format=0.0, advantage=1.5)


def record(trajectory: Trajectory) -> dict[str, object]:
    return to_record(trajectory, VERDICT, stage="one", num_answers=0, decode=str)


def test_records_keep_the_starts_and_of_one_sequence_say_nothing() -> None:
    for made in (BRANCHED, PLAIN):
        told = json.loads(json.dumps(record(made)))
        assert from_record(told) == made == decode_frame(encode_frame(made)).trajectory
        assert ("starts" in told) == (made is BRANCHED)
        _check_whole(made)
    assert [BRANCHED.ids[part].tolist() for part in BRANCHED.sequences] == [[1, 2, 3, 4, 7], [1, 2, 3, 5, 6]]
    assert (BRANCHED.response_length, PLAIN.response_length) == (6, 2)


@pytest.mark.parametrize("starts", [(5,), (0, 4), (0, 5, 5), (0, 8), (5, 0)])
def test_starts_that_begin_no_sequence_are_refused(starts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="are not 0 and later starts of prompts"):
        replace(BRANCHED, starts=starts)


def test_rows_share_advantage_and_weight_and_a_sample_trains_once() -> None:
    first, second, plain = policy_examples([BRANCHED, PLAIN], [1.5, -1.0])
    assert [e.name for e in (first, second, plain)] == ["s1/t/0", "s1/t/0#1", "s1/t/1"]
    assert [e.advantage for e in (first, second, plain)] == [1.5, 1.5, -1.0]
    assert first.weights.tolist() == pytest.approx([0, 1 / 7, 1 / 7, 0, 1 / 7])
    assert second.weights.tolist() == pytest.approx([0, 0, 0, 1 / 7, 1 / 7])
    assert second.ids.tolist() == [1, 2, 3, 5, 6] and second.rollout_logprobs.tolist() == [0, 0, 0, -0.4, -0.5]
    (micro,) = pack([first, second], tokens_per_microbatch=64)
    assert sorted(micro.targets_T.tolist()) == [2, 3, 5, 6, 7]


def test_an_advantage_of_each_token_is_cut_at_the_sequences() -> None:
    assert sample_of(BRANCHED, BRANCHED.outcome).num_tokens == 5
    first, second = policy_examples([BRANCHED], [[0.0, 1.0, 2.0, 3.0, 4.0]])
    assert first.advantages.tolist() == [0.0, 1.0, 2.0] and second.advantages.tolist() == [3.0, 4.0]


def test_a_late_trajectory_ends_with_the_last_sequence_that_has_a_sample() -> None:
    late = Failed(kind=POLICY_TIMEOUT, retryable=True, detail="")
    parts = [s for s in BRANCHED.segments if s.start < 8]
    cut = replace(BRANCHED, ids=BRANCHED.ids[:8], logprobs=BRANCHED.logprobs[:8], segments=tuple(parts), outcome=late)
    rl = config(2, 2).model_copy(update={"timeouts": "negative"})
    kept = select([Group(task=cut.task, trajectories=(cut, PLAIN))], rl, seed=0).kept
    assert [t.starts for t in kept] == [(0,), (0,)] and kept[0].ids.tolist() == [1, 2, 3, 4, 7]


def test_the_learners_values_are_found_for_all_sequences(tmp_path: Path) -> None:
    def learned(*gaps: float) -> LearnedTokens:
        values = np.array(gaps, np.float32)
        return LearnedTokens(gaps=values, entropies=values, log_ratios=values * 0, codes=np.zeros(len(gaps), np.uint8))

    rows = {e.name: learned(*[k + 1.0] * e.num_targets) for k, e in enumerate(policy_examples([BRANCHED], [0.0]))}
    for rank, name in ((1, "s1/t/0"), (0, "s1/t/0#1")):
        write_learned(tmp_path, {name: rows[name]}, step=1, rank=rank, ranks=2)
    found = LearnedStep(tmp_path / "step_000001.columns").find(str(BRANCHED.key), 2)
    assert found is not None and found.gaps.tolist() == [1.0, 1.0, 1.0, 2.0, 2.0]
    shown = tokens(record(BRANCHED), lambda ids: None, found, start=0, stop=10)
    assert [g is not None for g in shown["learner"]["logprobs"]] == BRANCHED.loss_mask().tolist()
    assert conversation(record(BRANCHED))["starts"] == [0, 5] and conversation(record(PLAIN))["starts"] == [0]


def test_a_chat_continues_the_sequence_that_it_names(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write_records(path, [record(BRANCHED)])
    starts = {"@1": [1], "@2": [1, 2, 3, 4], "@3": [1, 2, 3], "": [1, 2, 3, 5, 6]}
    assert {turn: recorded_start(f"{path}:0{turn}").ids for turn in starts} == starts


def test_context_of_a_later_sequence_carries_no_loss() -> None:
    wrote = [s.origin is Origin.policy for s in BRANCHED.segments for _ in range(s.start, s.end)]
    assert BRANCHED.loss_mask().tolist() == wrote and BRANCHED.num_policy_tokens == 5

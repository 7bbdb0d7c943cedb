"""One, two and four ranks learn the same: losses, gradient norms, weights, and what stops a step."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rocstar.engine.record.learned import LearnedStep
from rocstar.train.algorithm.losses import LOSSES
from rocstar.train.learner.claims import check_folder

Learned = dict[tuple[str, int], Any]


def results(folder: Path) -> Learned:
    """The results of rank 0, by case and number of ranks; see ranks/learn.py."""
    found = {}
    for path in folder.glob("*.pt"):
        name, _, size = path.stem.rpartition(" ")
        found[name, int(size)] = torch.load(path, weights_only=False)
    return found


@pytest.fixture(scope="session")
def folder(run_ranks: Any) -> Path:
    ended: Path = run_ranks("learn.py")
    return ended


@pytest.fixture(scope="session")
def learned(folder: Path) -> Learned:
    return results(folder)


def test_what_goes_to_servers_bucket_by_bucket_is_the_weights(learned: Learned) -> None:
    for found in learned.values():
        assert list(found["streamed"]) == list(found["weights"])
        assert all(torch.equal(found["streamed"][name], w) for name, w in found["weights"].items())


def assert_same(found: dict[str, Any], expected: dict[str, Any], *, atol: float) -> None:
    for stats, others in zip(found["stats"], expected["stats"], strict=True):
        assert stats == pytest.approx(others, rel=1e-5, abs=atol)
    assert found["kl"] == pytest.approx(expected["kl"], abs=1e-6)
    assert found["worst"] == expected["worst"]
    assert found["grad_norms"] == pytest.approx(expected["grad_norms"], rel=1e-4)
    assert found["weights"].keys() == expected["weights"].keys()
    for name, weight in found["weights"].items():
        torch.testing.assert_close(weight, expected["weights"][name], rtol=0, atol=1e-5, msg=name)


@pytest.mark.parametrize(("name", "size"), [("qwen3 tied", 2), ("qwen3 tied", 4), ("llama", 2), ("llama tied", 2)])
def test_ranks_learn_what_one_process_learns(learned: Learned, name: str, size: int) -> None:
    expected = learned[name, 1]
    assert len(expected["grad_norms"]) == 5 and min(expected["grad_norms"]) > 0.01
    assert_same(learned[name, size], expected, atol=1e-5)


def test_two_ranks_learn_each_loss_and_each_term_as_one_process_does(folder: Path) -> None:
    """And each has an effect: no two of them end with the same weights."""
    found = results(folder / "terms")
    names = {name for name, _ in found}
    others = {"sequence_mask", "negative_mask", "echo", "penalties", "entropy"}
    assert names == {*LOSSES} | others
    for name in names:
        expected = found[name, 1]
        assert len(expected["grad_norms"]) == 4 and min(expected["grad_norms"]) > 1e-3, name
        assert_same(found[name, 2], expected, atol=1e-5)
        failed = found[name, 2]["failed"]
        assert "KeyError: 'alone' (learn.py, line " in failed["message"] and "no weight was" in failed["message"], name
        assert failed["names"] == [f"0/{k}" for k in range(7)]
    assert found["echo", 2]["stats"][0]["echo_tokens"] > 0
    for name, other in itertools.combinations(sorted(names), 2):
        pairs = zip(found[name, 2]["weights"].values(), found[other, 2]["weights"].values(), strict=True)
        assert max(float((a - b).abs().max()) for a, b in pairs) > 1e-4, (name, other)


@pytest.mark.parametrize("size", [1, 2])
def test_the_primitives_of_a_step_make_the_bits_of_the_whole_step(learned: Learned, size: int) -> None:
    found, expected = learned["by hand", size], learned["qwen3 tied", size]
    assert found["grad_norms"] == expected["grad_norms"]
    assert [stats["loss"] for stats in found["stats"]] == [stats["loss"] for stats in expected["stats"]]
    assert all(torch.equal(weight, expected["weights"][name]) for name, weight in found["weights"].items())


@pytest.mark.parametrize(("name", "size"), [("qwen3 tied", 4), ("llama", 2)])
def test_each_rank_writes_what_it_learned_and_together_it_is_what_one_learns(
    learned: Learned, name: str, size: int
) -> None:
    folders = [Path(learned[name, ranks]["learned"]) for ranks in (1, size)]
    assert [len(list(folder.glob("*.learned"))) for folder in folders] == [2, 2 * size]
    for batch in range(2):
        alone, together = (LearnedStep(folder / f"step_{batch:06d}.columns") for folder in folders)
        for k in range(12):
            one, other = alone.find(f"{batch}/{k}"), together.find(f"{batch}/{k}")
            assert one is not None and other is not None and len(one) == len(other)
            assert other.gaps == pytest.approx(one.gaps, rel=0.01, abs=1e-4)
            assert other.log_ratios == pytest.approx(one.log_ratios, rel=0.02, abs=1e-4)
            assert other.entropies == pytest.approx(one.entropies, abs=0.1)


def test_copies_of_the_weights_on_two_nodes_learn_what_one_process_learns(learned: Learned) -> None:
    """Parted over two ranks and copied to two nodes, parted over four, and whole."""
    for expected in (learned["qwen3 tied", 1], learned["qwen3 tied", 4]):
        assert_same(learned["over nodes", 4], expected, atol=1e-5)


def test_published_and_saved_weights_are_the_learners_and_no_rank_writes_all(learned: Learned) -> None:
    for (name, size), result in learned.items():
        saved = (result["saved"], torch.bfloat16 if size == 2 else torch.float32)
        for files, dtype in ((result["published"], torch.bfloat16), saved):
            assert (len(files) > 1) == (size > 1), (name, size)
            found = {key: weight for weights in files.values() for key, weight in weights.items()}
            assert found.keys() == result["weights"].keys()
            assert sum(map(len, files.values())) == len(found)
            for key, weight in found.items():
                assert torch.equal(weight, result["weights"][key].to(dtype)), (name, size, key)


def test_a_checkpoint_of_several_files_is_for_transformers_too(learned: Learned) -> None:
    result = learned["over nodes", 4]
    assert len(result["saved"]) > 1
    check_folder(Path(result["folder"]))
    loaded = AutoModelForCausalLM.from_pretrained(result["folder"], dtype=torch.float32)
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, result["weights"][name]), name


def test_what_is_given_back_is_counted(learned: Learned) -> None:
    for (name, size), result in learned.items():
        assert result["freed"].gradients == result["gradients"] > 0, (name, size)


def test_every_rank_adds_the_distance_to_the_start_policy_of_its_tokens(learned: Learned) -> None:
    """Of the weights at the batch start; `test_ranks_learn_what_one_process_learns` compares the sums."""
    for (name, size), result in learned.items():
        sft, first, second = result["stats"]
        is_measured = name not in ("checkpointing", "by hand")
        for stats in (first, second):
            assert stats["start_tokens"] == is_measured * stats["tokens"], (name, size)
        assert sft["start_kl"] == 0.0
        assert (0.0 < first["start_kl"] < second["start_kl"]) == is_measured, (name, size)


def test_activation_checkpointing_and_the_distance_to_the_start_change_no_number(learned: Learned) -> None:
    found, expected = learned["checkpointing", 2], learned["qwen3 tied", 2]
    assert found["grad_norms"] == expected["grad_norms"]
    assert all(torch.equal(w, expected["weights"][name]) for name, w in found["weights"].items())


def test_bfloat16_is_of_the_forward_alone(learned: Learned) -> None:
    """Two ranks agree with one to float32's rounding, both with float32 to bfloat16's."""
    half, full = learned["bfloat16", 1], learned["qwen3 tied", 1]
    assert_same(learned["bfloat16", 2], half, atol=1e-4)
    assert half["dtypes"] == {"torch.float32"}
    assert half["grad_norms"] != full["grad_norms"]
    assert half["grad_norms"] == pytest.approx(full["grad_norms"], rel=0.1)
    steps = [(half["weights"][name] - w).abs().max() for name, w in full["weights"].items()]
    assert max(steps) < 5e-3, "five steps of 1e-3 at most"
    some = next(iter(half["weights"].values()))
    assert not torch.equal(some, some.bfloat16().float()), "the weights are no rounded ones"


def test_what_is_not_finite_stops_all_ranks_and_rank_0_has_every_microbatch(learned: Learned) -> None:
    for (name, size), result in learned.items():
        stopped = result["stopped"]
        assert stopped["names"] == [f"0/{k}" for k in range(7)], (name, size)
        assert "no weight was changed" in stopped["message"]
        assert all(math.isnan(norm) for norm in stopped["norms"])


def test_what_one_rank_alone_cannot_use_stops_all_of_them_before_any_work(learned: Learned) -> None:
    """The value lies in a microbatch of the last rank; rank 0 names it and has the microbatches of all."""
    for (name, size), result in learned.items():
        for what, stopped in zip(("advantages", "rollout_logprobs", "weights"), result["spoiled"], strict=True):
            assert stopped is not None, (name, size, what)
            assert stopped["message"] == (
                f"a value that is not finite, or an id outside the vocabulary of 40, in {what}; no weight was changed"
            )
            assert stopped["names"] == sorted(f"0/{k}" for k in range(12))
            assert len(stopped["bad"]) == 1 and set(stopped["norms"]) == {None}
        for weight, after in zip(result["weights"].values(), result["weights_after"].values(), strict=True):
            assert torch.equal(weight, after)

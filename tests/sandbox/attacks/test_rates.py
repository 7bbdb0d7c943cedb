"""What is said of a channel's speed: errors cost bits, and chance is no channel."""

import pytest

from rocstar.sandbox.attacks.channels import entropy, rate_of, upper_end
from rocstar.sandbox.attacks.pair import BROKEN, load_pairs
from rocstar.sandbox.attacks.stream import Stream

PAIR = next(pair for pair in load_pairs().values() if pair.slots and pair.bits == 1)


def stream(wrong: int, sent: int = 1000) -> Stream:
    return Stream(slot_s=0.001, sent=sent, wrong=wrong, output="")


def test_a_stream_without_errors_is_almost_a_bit_per_slot() -> None:
    assert 950 < rate_of(PAIR, stream(0)) < 1000


def test_errors_cost_what_a_perfect_code_costs() -> None:
    assert entropy(0.5) == 1.0 and entropy(0.0) == 0.0
    assert entropy(0.11) == pytest.approx(0.5, abs=0.001)
    assert rate_of(PAIR, stream(110)) < 500 < rate_of(PAIR, stream(80))


@pytest.mark.parametrize("wrong", [470, 500, 1000])
def test_what_chance_gives_is_nothing(wrong: int) -> None:
    assert rate_of(PAIR, stream(wrong)) == 0.0


def test_few_bits_say_little() -> None:
    assert upper_end(0, 10) > 0.25 and upper_end(0, 1000) < 0.01
    assert not stream(0, sent=63).passed and stream(15, sent=64).passed and not stream(16, sent=64).passed


@pytest.mark.parametrize("said", ["NameError: name 'x'", "bash: line 1: awk: command not found"])
def test_a_program_that_is_wrong_proves_nothing(said: str) -> None:
    assert BROKEN.search(said) and not BROKEN.search("PermissionError: [Errno 13] Permission denied")

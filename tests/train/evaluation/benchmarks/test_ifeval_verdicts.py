"""Our checkers give the verdicts that the original gave on made-up prompts; the repaired ones the right ones.

The recording says with which command it was made.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.evaluation.benchmarks.ifeval.instructions import KINDS, check_instructions, language, loose_variants

from .... import needs

RECORDING = json.loads((Path(__file__).parent / "recorded" / "ifeval.json").read_text(encoding="utf-8"))
LETTER = "keywords:letter_frequency"
NTH = "length_constraints:nth_paragraph_first_word"


def one(kind: str, response: str, arguments: Mapping[str, Any]) -> tuple[bool, bool, bool]:
    """Strict, loose and fixed verdict of one instruction."""
    verdicts = check_instructions([(kind, arguments)], response)
    return verdicts.strict[0], verdicts.loose[0], verdicts.fixed[0]


def recorded() -> Iterator[tuple[Mapping[str, Any], str, bool, bool]]:
    columns = zip(RECORDING["instructions"], RECORDING["strict"], RECORDING["loose"], strict=True)
    for instruction, strict, loose in columns:
        for response, *flags in zip(RECORDING["responses"], strict, loose, strict=True):
            yield instruction, response, *(flag == "1" for flag in flags)


@pytest.fixture(autouse=True)
def detector() -> None:
    needs.modules("langdetect")


def test_every_recorded_verdict_is_ours() -> None:
    differ = [
        (instruction, response, strict, loose)
        for instruction, response, strict, loose in recorded()
        if one(instruction["id"], response, instruction["arguments"])[:2] != (strict, loose)
    ]
    assert not differ


def test_the_recording_covers_all_kinds_and_both_verdicts() -> None:
    seen: dict[str, set[bool]] = {}
    for instruction, _, strict, _ in recorded():
        seen.setdefault(instruction["id"], set()).add(strict)
    assert seen == {kind: {False, True} for kind in KINDS}
    assert len(KINDS) == 25


def test_a_text_has_one_language_however_often_it_is_asked() -> None:
    # Unseeded, this text has been seen with four verdicts.
    texts = ["OK NO MAS", "IN DE LA", "ALLES GUT DE MI"]
    first = [language(text) for text in texts]
    for _ in range(20):
        language.cache_clear()
        assert [language(text) for text in texts] == first


@pytest.mark.parametrize(
    ("response", "upstream", "fixed"),
    [
        ("\n\nalpha\n\nbeta two\n\ngamma", False, True),
        ("\n\nbeta\n\nalpha\n\ngamma", True, False),
        ("alpha\n\nbeta two\n\ngamma", True, True),
        ("alpha\n\nbeta", False, False),
    ],
)
def test_the_repaired_paragraph_is_one_that_was_counted(response: str, upstream: bool, fixed: bool) -> None:
    arguments = {"num_paragraphs": 3, "nth_paragraph": 2, "first_word": "beta"}
    strict, _, repaired = one(NTH, response, arguments)
    assert (strict, repaired) == (upstream, fixed)


@pytest.mark.parametrize(("letter", "response"), [("#", "# # #"), ("!", "No!!!")])
def test_the_repaired_letter_is_the_one_that_was_asked_for(letter: str, response: str) -> None:
    arguments = {"letter": letter, "let_frequency": 3, "let_relation": "at least"}
    assert one(LETTER, response, arguments) == (False, False, True)


def test_a_character_that_is_no_letter_has_the_verdict_of_most_letters() -> None:
    arguments = {"letter": "#", "let_frequency": 1, "let_relation": "at least"}
    half, more = "abcdefghijklm", "abcdefghijklmn"
    assert [one(LETTER, text, arguments)[0] for text in (half, more)] == [False, True]


def test_the_repaired_capitals_are_read_in_lower_case() -> None:
    kind = KINDS["change_case:english_capital"]
    assert kind.repaired is not None
    text = "THE WATER WAS COLD AND WE DID NOT WANT TO GO IN."
    assert kind.repaired(text, {})
    assert not kind.repaired(text.replace("THE", "The"), {})
    assert not kind.repaired("DER FLUSS IST HEUTE SEHR KALT UND WIR GEHEN NICHT HINEIN.", {})


@given(st.text(alphabet="ab*[]<>\n\t \"-.!?1'", max_size=60))
def test_what_is_followed_strictly_is_followed_loosely(response: str) -> None:
    for instruction in RECORDING["instructions"]:
        if not instruction["id"].startswith(("language", "change_case")):
            strict, loose, _ = one(instruction["id"], response, instruction["arguments"])
            assert loose >= strict


def test_the_readings_drop_lines_and_asterisks() -> None:
    assert loose_variants("*a*\nb\nc") == ["*a*\nb\nc", "b\nc", "*a*\nb", "b", "a\nb\nc", "b\nc", "a\nb", "b"]


@pytest.mark.parametrize("unit", ["\n", "[", "<", "* ", "(", '"', "a.", "\t"])
def test_a_long_response_of_one_kind_of_mark_is_judged_at_once(unit: str) -> None:
    # With a check that is quadratic this takes so long that the test's own limit ends it.
    response = unit * (200_000 // len(unit))
    last = {instruction["id"]: instruction["arguments"] for instruction in RECORDING["instructions"]}
    for kind, arguments in last.items():
        if not kind.startswith("language"):
            KINDS[kind].check(response, arguments)

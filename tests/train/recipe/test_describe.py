"""`rocstar recipe`: every field has a description, and the committed page is up to date."""

import json
from pathlib import Path

import pytest

from rocstar.train.cli import main
from rocstar.train.recipe.describe import PAGE, markdown, short_table
from rocstar.train.recipe.explain import PROGRAMS, find_meant, terms
from rocstar.train.recipe.fields import FieldDoc, sections, surface

ROOT = Path(__file__).parents[3]
FIELDS = [field for section in sections() for field in section.fields]
LONGEST_CELL = 200


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_a_field_describes_itself(field: FieldDoc) -> None:
    """A number says its unit; what a reader needs no more than the name for has a sentence all the same."""
    assert field.description and field.type and field.default, field
    assert field.unit or not {"number", "integer"} & set(field.type.split()), "add a Unit (train/recipe/section.py)"
    assert len(field.description) < LONGEST_CELL and "\n" not in field.description
    assert "|" not in field.description and "<think>" not in field.description.replace("`<think>`", "")


@pytest.mark.parametrize("section", sections(), ids=lambda section: section.name)
def test_a_section_describes_itself(section: object) -> None:
    assert getattr(section, "description", "")


def test_the_page_is_up_to_date() -> None:
    """Write it with: rocstar recipe --markdown > docs/reference/recipe.md"""
    page = markdown()
    assert (ROOT / PAGE).read_text(encoding="utf-8") == page
    rows = [line for line in page.splitlines() if line.startswith(("| `", "| **`"))]
    assert len(rows) == len(FIELDS)
    assert all(len(cell) < LONGEST_CELL for row in rows for cell in row.split("|"))


def test_the_short_table_leaves_out_what_is_for_experts() -> None:
    short, long = short_table(), short_table(experts=True)
    assert "tasks_per_step = 8" in short and "roc_eps" not in short and "--all" in short
    assert "roc_eps = 0.1" in long and "[off_policy]" in long
    assert all(field.name.rpartition(".")[2] in long for field in FIELDS)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rl.clip_high", ["rl.clip_high", "0.28", "number", "ratio", "> 0", "experts", "1 + clip_high"]),
        ("stages.0.steps", ["stages.steps", "required", "integer", ">= 0"]),
        ("eval.data.limit", ["tasks.NAME.limit", "unit     tasks", ">= 0"]),
        ("stages.1.data.source", ["tasks.NAME.source", "reasoning_gym"]),
        ("tasks.NAME", ["[tasks.NAME]", "tasks.NAME.source", 'data = "NAME"']),
        ("model", ["[model]", "model.path", "model.dtype", '"float32" or "bfloat16"']),
        ("eval.data", ["eval.data", "held-out", "not set"]),
        ("run.callbacks", ["[[run.callbacks]]", "run.callbacks.kind", "run.callbacks.args"]),
    ],
)
def test_a_name_is_shown_in_full(name: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", name]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in words), printed
    assert "rl.clip_low" not in printed, "one field is shown alone"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("rl.clip_hihg", "'rl.clip_high'"),
        ("clip_high", "'rl.clip_high'"),
        ("learning_rate", "'learning_rate' of TRL is rl.lr and sft.lr"),
        ("lr", "did you mean 'sft.lr' or 'rl.lr'?"),
        ("rl.nope", "; the fields of rl are tasks_per_step, "),
        ("callbacks", "did you mean 'run.callbacks'?"),
        ("rll", "'rl'"),
        ("eval.data.sorce", "'eval.data.source'"),
    ],
)
def test_an_unknown_name_is_refused(name: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", name]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and repr(name) in message and meant in message
    assert main(["recipe", "--rl.lr=3"]) == 2
    assert "see `rocstar recipe --help`" in capsys.readouterr().err


def test_as_json_every_field_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "--json"]) == 0
    assert [FieldDoc(**one) for one in json.loads(capsys.readouterr().out)] == FIELDS
    assert main(["recipe", "rl.lr", "--json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == ["rl.lr"]


def test_a_field_of_another_program_is_one_of_ours_or_has_a_fix() -> None:
    ours = {name.removesuffix(" = DATA") for name in surface()} | {"tools"}
    for term in terms():
        assert set(term) <= {"ours", "care", *PROGRAMS}, term
        assert set(term.get("ours", [])) <= ours and (term.get("ours") or term["care"]), term
        assert set(PROGRAMS) & set(term), term
        for name in (name for program in PROGRAMS for name in term.get(program, ())):
            meant, last = find_meant(name), name.rpartition(".")[2]
            assert f"{last!r} of " in meant or "did you mean" in meant, name
            assert all(field in meant for field in term.get("ours", [])), (name, meant)


def test_the_page_of_other_programs_is_up_to_date() -> None:
    """The table of docs/guide/coming-from.md is terms.toml; names that belong to no program are left out."""
    rows = []
    for term in terms():
        cells = [", ".join(f"`{name}`" for name in term.get(p, ())) for p in ("trl", "verl", "prime_rl", "ours")]
        if any(cells[:3]):
            rows.append(f"|{'|'.join(cells)}|{term.get('care', '')}|")
    page = (ROOT / "docs" / "guide" / "coming-from.md").read_text(encoding="utf-8")
    assert [line for line in page.splitlines() if line.startswith("|")][2:] == rows, "\n".join(rows)

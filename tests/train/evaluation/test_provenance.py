"""The digest of a verifier: it covers all that decides about an answer."""

from pathlib import Path

import pytest

from rocstar.train.evaluation.provenance import verifier_digests
from rocstar.train.evaluation.sets import EvaluationSet
from rocstar.train.recipe.config import Recipe
from rocstar.train.tasks import verify

HELD_OUT = EvaluationSet(name="heldout", tasks=(), samples=1, temperature=1.0, max_response_tokens=1, max_turns=1)


@pytest.mark.parametrize("name", ["verify.py", "numbers.py", "units.toml"])
def test_a_digest_changes_with_a_module_or_a_table_of_the_verifier(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in Path(verify.__file__).parent.glob("*.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(verify, "__file__", str(tmp_path / "verify.py"))
    before = verifier_digests(Recipe(), [HELD_OUT])
    with (tmp_path / name).open("a") as changed:
        changed.write("# changed\n")
    after = verifier_digests(Recipe(), [HELD_OUT])
    assert before["heldout"] != after["heldout"]

"""Recipes: what is read, what is refused and with which words, and that what is written reads back."""

import contextlib
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.scheduling.policies import POLICIES as SCHEDULER_POLICIES
from rocstar.train.cli import main
from rocstar.train.recipe.config import CallbackConfig, EvalConfig, Recipe, RunConfig, with_eval_limits
from rocstar.train.recipe.data_config import DataConfig
from rocstar.train.recipe.engine_config import POLICIES
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import apply_override, load_recipe, parse_recipe, to_toml
from rocstar.train.recipe.rl_config import CONSTANTS, ROLLOUT_LOSSES, StageConfig

RECIPES = sorted((Path(__file__).parents[3] / "train" / "recipes").glob("*.toml"))

toml_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
toml_scalars = st.one_of(
    st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False), toml_text, st.dates()
)
toml_values = st.recursive(
    toml_scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(toml_text, inner, max_size=3),
    max_leaves=8,
)
families = st.dictionaries(toml_text, st.dictionaries(toml_text, toml_values, max_size=3), min_size=1, max_size=3)


@given(
    families=families,
    name=toml_text,
    question=toml_text,
    temperature=st.floats(0, 1e30).filter(lambda value: not 0 < value < 1e-30),
    arguments=st.dictionaries(toml_text, toml_values, max_size=3),
)
def test_a_written_recipe_reads_back_equal(
    families: dict[str, Any], name: str, question: str, temperature: float, arguments: dict[str, Any]
) -> None:
    data = DataConfig(source="reasoning_gym", families=families, size=3, question=question)
    stage = StageConfig(name=name, steps=1, max_response_tokens=9, max_turns=1, data=data)
    recipe = Recipe(
        run=RunConfig(name=name, trackers=["trackio"], callbacks=[CallbackConfig(kind=question, args=arguments)] * 2),
        stages=[stage, stage.model_copy(update={"data": None})],
        eval=[EvalConfig(data=data, temperature=temperature), EvalConfig(set="aime24", path=name, limit=3)],
    )
    assert parse_recipe(tomllib.loads(to_toml(recipe)), where="test") == recipe


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_shipped_recipe_loads_and_explains_itself(
    path: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for recipe in (Recipe(), load_recipe(path)):
        assert parse_recipe(tomllib.loads(to_toml(recipe)), where="test") == recipe
    code = main(
        ["train", str(path), "--dry-run", "--show-recipe", "--world=1x1", "--output-dir", str(tmp_path / "run")]
    )
    printed, missing = capsys.readouterr()
    lacking = {
        "rstar2_14b": ("data/rstar2_sft/conversations.jsonl", "data/rstar2_rl/tasks.jsonl", "sglang"),
        "rstar2_4b_one_node": ("data/rstar2_sft/conversations.jsonl", "data/rstar2_rl/tasks.jsonl", "sglang"),
        "lora_7b_one_gpu": ("sglang",),
        "report_cpu": ("conversations/conversations.jsonl",),
    }
    assert code == (2 if path.stem in lacking else 0), missing
    assert all(word in missing for word in lacking.get(path.stem, ())), missing
    assert parse_recipe(tomllib.loads(printed), where="dry run") == recipe  # the plan is comments
    assert all(f"# {stage.name}" in printed for stage in recipe.stages)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--rl.lr=1e-3", {"rl": {"lr": 1e-3}, "stages": [{"steps": 5}]}),
        ("--stages.0.steps=2", {"stages": [{"steps": 2}]}),
        ("--stages.0.data.source=a.jsonl", {"stages": [{"steps": 5, "data": {"source": "a.jsonl"}}]}),
        ("--run.name=two words", {"run": {"name": "two words"}, "stages": [{"steps": 5}]}),
        ("--run.name=", {"run": {"name": ""}, "stages": [{"steps": 5}]}),
        ("--run.name=a=b", {"run": {"name": "a=b"}, "stages": [{"steps": 5}]}),
        ("--run.name=123", {"run": {"name": "123"}, "stages": [{"steps": 5}]}),
        ("--run.name=2026-01-01", {"run": {"name": "2026-01-01"}, "stages": [{"steps": 5}]}),
        ("--run.name=0x10", {"run": {"name": "0x10"}, "stages": [{"steps": 5}]}),
        ("--model.path=nan", {"model": {"path": "nan"}, "stages": [{"steps": 5}]}),
        ("--stages.0.name=true", {"stages": [{"steps": 5, "name": "true"}]}),
        ("--stages.0.data.split=1e3", {"stages": [{"steps": 5, "data": {"split": "1e3"}}]}),
        ("--eval.name=7", {"eval": [{"name": "7"}], "stages": [{"steps": 5}]}),
        ("--run.seed=7", {"run": {"seed": 7}, "stages": [{"steps": 5}]}),
        ("--reward.args.n=1", {"reward": {"args": {"n": 1}}, "stages": [{"steps": 5}]}),
        ("--no.such=1", {"no": {"such": 1}, "stages": [{"steps": 5}]}),
        ('--run.name="5"', {"run": {"name": "5"}, "stages": [{"steps": 5}]}),
        ("--run.name=1\nseed = 7", {"run": {"name": "1\nseed = 7"}, "stages": [{"steps": 5}]}),
        ('--run.trackers=["wandb"]', {"run": {"trackers": ["wandb"]}, "stages": [{"steps": 5}]}),
    ],
)
def test_an_override_sets_one_value(option: str, expected: dict[str, Any]) -> None:
    raw: dict[str, Any] = {"stages": [{"steps": 5}]}
    apply_override(raw, option)
    assert raw == expected


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("rl.lr=1", "not of the form"),
        ("--=1", "not of the form"),
        ("--stages.x.steps=1", "'x' is not one of"),
        ("--stages.0.steps.now=1", "'stages.0.steps' is a value, not a section"),
        ("--stages.0.steps.now.then=1", "'now' is below a value"),
    ],
)
def test_a_bad_override_is_refused(option: str, words: str) -> None:
    with pytest.raises(ConfigError, match="option") as refused:
        apply_override({"stages": [{"steps": 5}]}, option)
    assert words in str(refused.value) and repr(option) in str(refused.value)


WRONG = Path(__file__).with_name("wrong_recipes.txt").read_text(encoding="utf-8").strip().split("\n\n")[1:]


@pytest.mark.parametrize(("text", "words"), [row.rsplit("\n=> ", 1) for row in WRONG])
def test_a_mistake_in_a_recipe_is_named_with_its_fix(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_recipe(tomllib.loads(text), where="r.toml")
    assert str(refused.value).startswith("r.toml: ") and words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_recipe({"rl": {"lr": -1}, "modl": {}}, where="r.toml")
    assert "rl.lr" in str(refused.value) and "modl" in str(refused.value)


def test_lockstep_trains_in_turns() -> None:
    """Rollouts beside a learner depend on timing."""
    assert parse_recipe({}, where="r").rl.max_staleness == 1
    lockstep = {"engine": {"deterministic": True}}
    assert parse_recipe(lockstep, where="r").rl.max_staleness == 0
    with pytest.raises(ConfigError, match=r"max_staleness = 2 .* excludes"):
        parse_recipe({**lockstep, "rl": {"max_staleness": 2}}, where="r")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--rl.cispo.high=5.0"], "cispo = {'high': 5.0} is read by loss = 'cispo' alone, and loss = 'clip'"),
        (["--rl.loss=gspo", "--rl.clip_low=0.2"], "clip_low = 0.2 is read by loss = 'clip' alone, and loss = 'gspo'"),
        (["--rl.loss=own:f", "--rl.sapo.tau_negative=2"], "sapo = {'tau_negative': 2.0} is read by loss = 'sapo'"),
        (["--rl.loss=cispo", "--rl.cispo.low=6"], "low = 6.0 is not below high = 5.0; both are bounds of the ratio"),
        (["--rl.loss=gspo", "--rl.gspo.high=4e-4"], "low = 0.9997 is not below high = 0.0004"),
        (["--rl.loss=cisp"], "loss = 'cisp' is not known; did you mean 'cispo'?"),
        (["--rl.loss=dppo", "--rl.dppo.high=2"], "rl.dppo.high = 2 is above 1"),
    ],
)
def test_constants_of_another_loss_are_refused(options: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_recipe("quickstart", options)
    assert words in str(error.value)


@pytest.mark.parametrize("loss", ROLLOUT_LOSSES)
def test_a_loss_that_holds_the_importance_weight_takes_no_second_one(loss: str) -> None:
    assert load_recipe("quickstart", [f"--rl.loss={loss}"]).off_policy.correction == "none"
    assert load_recipe("quickstart").off_policy.correction == "token"
    for correction in ("token", "sequence", "icepop", "sequence_mask"):
        with pytest.raises(ConfigError, match=f"correction = '{correction}' weights a token by learner / rollout"):
            load_recipe("quickstart", [f"--rl.loss={loss}", f"--off_policy.correction={correction}"])
    load_recipe("quickstart", [f"--rl.loss={loss}", "--off_policy.correction=negative_mask"])


@pytest.mark.parametrize(
    "options", [["--rl.loss=cispo", "--rl.cispo.high=4"], ["--rl.loss=sapo"], ["--rl.clip_high=0.3"], []]
)
def test_a_written_recipe_has_the_constants_of_its_loss_alone_and_loads_again(
    options: list[str], tmp_path: Path
) -> None:
    recipe = load_recipe("quickstart", options)
    (tmp_path / "config.toml").write_text(to_toml(recipe))
    again = load_recipe(tmp_path)
    assert again == recipe and again.rl.constants() == recipe.rl.constants()
    written = tomllib.loads((tmp_path / "config.toml").read_text())["rl"]
    others = {name for loss, names in CONSTANTS.items() if loss != recipe.rl.loss for name in names}
    assert not others & written.keys() and set(CONSTANTS[recipe.rl.loss]) <= written.keys()


def test_the_policies_are_the_schedulers() -> None:
    assert tuple(SCHEDULER_POLICIES) == POLICIES


def test_the_tools_are_a_list() -> None:
    args = {"corpus": "notes.txt", "k": 3}
    recipe = parse_recipe({"tools": ["jupyter", {"kind": "m:C", "args": args}]}, where="r.toml")
    assert [(tool.kind, tool.args) for tool in recipe.tools] == [("jupyter", {}), ("m:C", args)]
    assert parse_recipe(tomllib.loads(to_toml(recipe)), where="r.toml") == recipe
    assert [tool.kind for tool in parse_recipe({}, where="r.toml").tools] == ["python"]


def test_demonstrations_need_a_tool_that_runs_programs() -> None:
    sft = {"steps": 1, "demonstration_tasks": {"source": "t.jsonl"}}
    with pytest.raises(ConfigError, match="tools lists none that runs them"):
        parse_recipe({"tools": ["m:C"], "sft": sft}, where="r.toml")
    parse_recipe({"tools": ["m:C"], "sft": sft | {"data": "chat.jsonl"}}, where="r.toml")


def test_an_engine_reads_back_equal() -> None:
    engine = {
        "kind": "sglang",
        "replicas": [[4, 5], [6, 7]],
        "policy": "thunder",
        "args": {"tp-size": 2, "mem_fraction_static": 0.8, "enable-metrics": True, "lora-paths": ["a", "b"]},
    }
    recipe = parse_recipe({"engine": engine}, where="test")
    assert recipe.engine.num_replicas == 2 and recipe.engine.gpus_of(1) == [6, 7]
    assert parse_recipe(tomllib.loads(to_toml(recipe)), where="test") == recipe


def test_the_limits_of_evaluations_are_the_last_stages_or_their_own() -> None:
    stages = [StageConfig(steps=1, max_response_tokens=tokens, max_turns=3) for tokens in (50, 70)]
    for made, own, limits in (
        ([], {}, (1024, 8)),
        (stages, {}, (70, 3)),
        (stages, {"max_turns": 5}, (70, 5)),
        (stages, {"max_response_tokens": 90}, (90, 3)),
    ):
        sets = [EvalConfig(data=DataConfig(source="x.jsonl"), **own), EvalConfig(set="aime24")]
        found, built_in = with_eval_limits(Recipe().model_copy(update={"stages": made, "eval": sets})).eval
        assert (found.max_response_tokens, found.max_turns) == limits
        assert (found.samples_per_task, found.temperature) == (4, 1.0)
        assert built_in == sets[1], "a built-in set has settings of its own"


def test_a_recipe_is_read_from_a_table(tmp_path: Path) -> None:
    text = '[model]\npath = "scratch"\n[tasks.t]\nsource = "t.jsonl"\n[[stages]]\nsteps = 1\ndata = "t"\n'
    text += "max_response_tokens = 9\nmax_turns = 1\n"
    (tmp_path / "r.toml").write_text(text)
    table = tomllib.loads(text)
    with contextlib.chdir(tmp_path):
        assert load_recipe(table, ["--rl.lr=0.5"]) == load_recipe("r.toml", ["--rl.lr=0.5"])
    assert table == tomllib.loads(text), "the caller's table is not changed"

"""A rehearsal finds what would fail on a GPU, and what would not fit on one, without one."""

import json
import tomllib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from rocstar.kernels.linear_loss import linear_loss
from rocstar.train.algorithm.loss import PolicyTokens
from rocstar.train.algorithm.off_policy import Corrected
from rocstar.train.cli import main
from rocstar.train.learner import gather
from rocstar.train.learner.learner import LossSettings
from rocstar.train.learner.model_io import model_without_weights, row_cost
from rocstar.train.learner.scratch import build_model
from rocstar.train.plan.plan import Machines
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.load import parse_recipe
from rocstar.train.rehearsal.fake_gpu import GPU, fake_gpu
from rocstar.train.rehearsal.memory_fit import OVERHEAD_GIB
from rocstar.train.rehearsal.memory_tracker import GIB, Category
from rocstar.train.rehearsal.phases import decode
from rocstar.train.rehearsal.rehearse import ACTS, Rehearsal, batches_of, rehearse_recipe
from rocstar.train.serving.embedded import engine_of, planned_rows

RECIPE = """
[run]
name = "small"
[model]
dtype = "bfloat16"
scratch = {vocab_size=1000, hidden_size=64, num_layers=2, num_heads=4, num_kv_heads=2, intermediate_size=128}
[sft]
steps = 1
optimizer = "adamw"
data = "demonstrations"
batch_size = 4
max_tokens = 100
[sft.demonstration_tasks]
source = "reasoning_gym"
families = {gcd = {}}
size = 4
[rl]
tasks_per_step = 4
rollouts_per_task = 8
group_size = 4
tokens_per_microbatch = 512
[[stages]]
steps = 1
max_response_tokens = 200
max_turns = 4
[stages.data]
source = "reasoning_gym"
families = {gcd = {}}
size = 4
"""


def small(**fields: Any) -> Recipe:
    """The recipe with fields of [model] and [rl] changed: `model_dtype="float32"`."""
    values = tomllib.loads(RECIPE)
    for name, value in fields.items():
        section, _, field = name.partition("_")
        values[section][field] = value
    return parse_recipe(values, where="test")


def rehearse(recipe: Recipe, *acts: str, ranks: int = 4, memory_gib: float = 80.0) -> Rehearsal:
    return rehearse_recipe(recipe, Machines(ranks_per_node=ranks), memory_gib, acts=acts or ACTS)


def held(found: Rehearsal, act: str = "rl") -> Mapping[Category, int]:
    return next(peak for peak in found.peaks if peak.act == act).by_category


@pytest.fixture(scope="module")
def four_ranks() -> Rehearsal:
    return rehearse(small())


def test_all_acts_are_played_and_nothing_is_refused(four_ranks: Rehearsal) -> None:
    assert [peak.act for peak in four_ranks.peaks] == ["sft", "rl", "publish", "checkpoint", "decode"]
    assert not four_ranks.problems and four_ranks.verdict is not None and four_ranks.verdict.fits


def test_a_rank_holds_its_share_of_the_state(four_ranks: Rehearsal) -> None:
    """Within the allocator's blocks: norms have 64 numbers."""
    params = sum(p.numel() for p in build_model(small().model.scratch, 1000, seed=0).parameters())
    assert held(four_ranks)[Category.parameters] == pytest.approx(params, rel=0.1)
    assert held(four_ranks)[Category.moments] == pytest.approx(2 * params, rel=0.1)
    assert 2 * params < held(four_ranks, "publish")[Category.gathers] < 3 * params, "bfloat16, whole"


def test_the_start_policy_is_counted(four_ranks: Rehearsal) -> None:
    with_start = held(rehearse(small(rl_start_kl_every=5), "rl"))
    assert with_start[Category.parameters] == 2 * held(four_ranks)[Category.parameters]


def test_a_broadcast_has_two_buckets_there_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By disk it is one tensor, with this rank's part of it."""
    monkeypatch.setattr(gather, "BUCKET_BYTES", 20_000)
    values = tomllib.loads(RECIPE)
    values["model"]["scratch"] |= {"vocab_size": 300, "num_layers": 8}
    by_way = {}
    for way in ("broadcast", "disk"):
        values["engine"] = {"kind": "sglang", "publish": way}
        recipe = parse_recipe(values, where="test")
        by_way[way] = held(rehearse(recipe, "publish"), "publish")[Category.gathers]
    params = sum(p.numel() for p in build_model(recipe.model.scratch, 300, seed=0).parameters())
    largest = 2 * 300 * 64
    assert 20_000 < by_way["broadcast"] <= 3 * largest < 2 * params / 4, "it is made from this rank's part"
    assert largest <= by_way["disk"] <= 3 * largest


@pytest.mark.parametrize("head_dtype", [None, torch.float32])
@pytest.mark.parametrize(("memory_gib", "rows"), [(80.0, 600), (OVERHEAD_GIB, 256)])
def test_logits_of_the_head_are_those_of_a_gpu_s_chunk(
    memory_gib: float, rows: int, head_dtype: torch.dtype | None, caplog: pytest.LogCaptureFixture
) -> None:
    """As many rows as the stated memory has room for; in float32 with a gradient in bfloat16 beside them. The
    weight's gradient is in float32 where it is added up over chunks."""
    with fake_gpu(1, memory_bytes=int(memory_gib * GIB)) as gpu, gpu.tracker.act("head"):
        hidden, weight = (
            torch.empty(n, 64, dtype=torch.bfloat16, device=GPU, requires_grad=True) for n in (600, 4096)
        )
        ids = torch.zeros(600, dtype=torch.long).to(GPU)
        loss, _ = linear_loss(hidden, weight, ids, lambda x, _: -x, head_dtype=head_dtype, grad_output=1.0)
        torch.autograd.backward(loss)
    logits = rows * 4096 * (2 if head_dtype is None else 6)
    weights = 4096 * 64 * (2 + (4 if rows < 600 else 2))
    assert gpu.tracker.peaks[0].total == pytest.approx(logits + weights + 2 * 600 * 64 * 2, rel=0.02)
    assert not caplog.records


def test_places_that_wait_for_the_gpu_are_named(four_ranks: Rehearsal) -> None:
    assert any(place.startswith("train/learner/learner.py:") for place in four_ranks.reads)


def test_a_tensor_of_the_cpu_in_the_loss_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_the_cpu(self: LossSettings, tokens: PolicyTokens) -> Corrected:
        ones_T = torch.ones(len(tokens.logprobs_T))
        return Corrected(weights_T=ones_T, is_capped_T=ones_T > 1, is_masked_T=ones_T > 1)

    monkeypatch.setattr(LossSettings, "correct", on_the_cpu)
    found = rehearse(small(), "rl")
    assert found.verdict is None and not found.as_json()["fits"]
    assert "train/algorithm/loss.py" in found.problems[0] and "two devices" in found.problems[0]


def test_kept_activations_and_large_microbatches_are_refused_with_the_field() -> None:
    kept = rehearse(small(rl_tokens_per_microbatch=4096, model_dtype="float32"), "rl", ranks=1)
    most = sum(held(kept).values())
    assert not held(kept).get(Category.gathers), "one process in float32 has no FSDP"
    fields = {"rl_tokens_per_microbatch": 4096, "model_activation_checkpointing": True}
    again = rehearse(small(**fields), "rl", ranks=1, memory_gib=OVERHEAD_GIB + 0.3 * most / GIB)
    assert again.verdict is not None and not again.verdict.fits
    assert held(again)[Category.activations] < 0.6 * held(kept)[Category.activations]
    assert "set rl.tokens_per_microbatch = " in again.problems[0]


def test_the_command_prints_one_object_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "small.toml"
    path.write_text(RECIPE)
    arguments = ["train", str(path), "--sft.steps=0", "--world", "1x4", "--gpu-memory-gb", "2.0032"]
    arguments.append("--engine.max_running=1")
    assert main([*arguments, "--dry-run", "--json"]) == 2
    refused = json.loads(capsys.readouterr().out)
    assert refused["fits"] is False and 0 < refused["peak_gib"] < 1 and refused["plan"]
    assert "set model.activation_checkpointing = true" in refused["problems"][-1]
    main([*arguments, "--dry-run", "--json", "--model.activation_checkpointing=true"])
    assert json.loads(capsys.readouterr().out)["fits"], "the advice suffices"
    assert main(arguments) == 2
    assert "--dry-run" in capsys.readouterr().err


def test_adapters_alone_have_gradients_and_moments(tmp_path: Path) -> None:
    """Beside them lie frozen weights in the recipe's type, and an embedded engine's merged copy of these."""
    values = tomllib.loads(RECIPE)
    scratch = parse_recipe(values, where="test").model.scratch
    model = build_model(scratch, 1000, seed=0)
    model.config.save_pretrained(tmp_path)
    values["model"] = {"dtype": "bfloat16", "path": str(tmp_path)}
    values["lora"] = {"rank": 4}
    found = rehearse(parse_recipe(values, where="test"), "rl", "publish", "decode", ranks=1)
    weights = sum(parameter.numel() for parameter in model.parameters())
    linears = [m for m in model.model.layers.modules() if isinstance(m, torch.nn.Linear)]
    adapters = sum(4 * (linear.in_features + linear.out_features) for linear in linears)
    blocks = 512 * 2 * len(linears)  # each tensor's last one
    step, later = held(found), held(found, "publish")
    assert 0 <= step[Category.parameters] - 2 * weights - 4 * adapters < 2 * blocks
    assert 0 <= later[Category.gradients] - 4 * adapters <= blocks
    assert 0 <= later[Category.moments] - 8 * adapters <= 3 * blocks  # AdamW counts its steps
    assert step[Category.engine] > 2 * weights
    assert not found.misplaced and found.verdict is not None and found.verdict.fits


def test_kv_that_does_not_fit_is_refused_with_the_number_of_rows_that_does() -> None:
    """64 rows, of two steps, lie beside the learner's state; with as many as the verdict says it fits."""
    wide = small(rl_tokens_per_microbatch=256)
    acts = ("rl", "publish", "decode")
    all_rows = rehearse(wide, *acts)
    assert all_rows.verdict is not None
    needed = OVERHEAD_GIB + all_rows.verdict.peak_gib
    refused = rehearse(wide, *acts, memory_gib=needed - 0.002)
    (problem,) = refused.problems
    assert "set engine.max_running = " in problem and "64 rows of 250 tokens" in problem
    rows = int(problem.split("engine.max_running = ")[1].split()[0])
    assert 16 < rows < 64
    engine = wide.engine.model_copy(update={"max_running": rows})
    assert not rehearse(wide.model_copy(update={"engine": engine}), *acts, memory_gib=needed - 0.002).problems


@pytest.mark.parametrize(("staleness", "beside"), [(1, True), (0, False)])
def test_kv_lies_beside_an_update_only_where_rollouts_go_on(
    staleness: int, beside: bool, four_ranks: Rehearsal
) -> None:
    """The copy of the weights is always there, but in the cold start: it ends before the engine is made."""
    default = small().rl.max_staleness
    found = four_ranks if staleness == default else rehearse(small(rl_max_staleness=staleness))
    copy = 2 * sum(p.numel() for p in build_model(small().model.scratch, 1000, seed=0).parameters())
    rows = 4 * 8 * (staleness + 1)
    kv = rows * 256 * 2 * 2 * 2 * 16 * 2  # tokens in blocks of 64, 2 layers, 2 heads, bfloat16
    assert held(found, "sft").get(Category.engine, 0) == 0
    decoding = held(found, "decode")[Category.engine]
    assert decoding > copy + kv
    for act in ("rl", "publish", "checkpoint"):
        engine = held(found, act)[Category.engine]
        assert engine == decoding if beside else 0 <= engine - copy < 20_000


def test_kv_of_the_rehearsal_is_what_the_engine_reserves() -> None:
    """A GPU engine leaves a place of each slot unused, which takes a block behind 320 tokens."""
    values = tomllib.loads(RECIPE)
    values["stages"][0]["max_response_tokens"] = 256
    recipe = parse_recipe(values, where="test")
    model: Any = model_without_weights(recipe.model).to(torch.bfloat16)  # type: ignore[arg-type]
    with fake_gpu(1) as gpu:
        memory = decode(gpu, recipe, model)
    assert (memory.rows, memory.tokens) == (64, 320)
    assert memory.kv == 64 * 384 * 2 * 2 * 2 * 16 * 2


@pytest.mark.parametrize(
    ("field", "value", "rows"),
    [("roc_mode", "none", 4 * 4 * 3), ("advantage", "distill", 4 * 4 * 3), ("roc_mode", "paper", 4 * 4)],
)
def test_a_learner_takes_branches_where_it_takes_all(field: str, value: str, rows: int) -> None:
    recipe = small(rl_fork="error", rl_fork_width=3, rl_rollouts_per_task=4)
    recipe = recipe.model_copy(update={"rl": recipe.rl.model_copy(update={field: value})})
    found, batches = batches_of(recipe, 1, row_cost(model_without_weights(recipe.model)), 1000)
    assert len(found) == batches["rl"].rows == rows


def test_a_gpu_engine_beside_a_learner_takes_the_rows_of_the_plan() -> None:
    """As many of the longest, branches with a copy of their parent's; on a CPU it takes what the recipe lets it."""
    forked = small(rl_fork="error", rl_fork_width=3)
    assert planned_rows(forked) == (3 * 64, 250)
    recipe = small()
    assert planned_rows(recipe) == (64, 250)
    model: Any = model_without_weights(recipe.model)
    with fake_gpu(1) as gpu, ThreadPoolExecutor(1) as thread:
        gpu.give_memory(model)
        assert engine_of(recipe, model, thread, beside_learner=True).load().total == 64 * 250
    plain = build_model(recipe.model.scratch, 1000, seed=0)
    with ThreadPoolExecutor(1) as thread:
        free = engine_of(recipe, plain, thread).load().total
        assert engine_of(recipe, plain, thread, beside_learner=True).load().total == free

"""`--dry-run`: its arithmetic against a model that was built, the world, one command per node."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from rocstar.train.cli import main
from rocstar.train.learner.model_io import measure
from rocstar.train.learner.scratch import build_model
from rocstar.train.plan.plan import Machines, describe_plan
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.engine_config import EngineConfig
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.model_config import ModelConfig, ScratchConfig
from rocstar.train.recipe.rl_config import RlConfig, StageConfig

SCRATCH = ScratchConfig(vocab_size=1000, hidden_size=96, num_layers=4, num_heads=6, num_kv_heads=3)
STAGES = [StageConfig(steps=3, max_response_tokens=100, max_turns=2)]


START = ["train", "r.toml"]


def plan_of(recipe: Recipe, machines: Machines) -> str:
    return "\n".join(describe_plan(recipe, START, machines)) + "\n"


def recipe_of(model: ModelConfig, **sections: object) -> Recipe:
    return Recipe.model_construct(**dict(Recipe()) | {"model": model, "stages": STAGES} | sections)


def megabytes(plan: str) -> dict[str, float]:
    """The rows of memory."""
    found = re.findall(r"^  ([a-zA-Z ]+?) +([0-9.,]+) (GB|MB)  ", plan, flags=re.M)
    return {name: float(number) * (1000 if unit == "GB" else 1) for name, number, unit in found}


def test_the_size_of_a_model_is_that_of_the_model() -> None:
    model, size = build_model(SCRATCH, 1000, seed=0), measure(ModelConfig(scratch=SCRATCH))
    assert not isinstance(size, str)
    assert size.parameters == sum(p.numel() for p in model.parameters())
    assert size.root_parameters == 1000 * 96 + 96, "embedding and head are tied"
    assert (size.layers, size.hidden, size.vocabulary, size.dtype_bytes) == (4, 96, 1000, 4)
    assert size.kv_values_per_token == 4 * 2 * 3 * 16


def test_one_process_holds_everything_and_four_a_quarter_each() -> None:
    recipe = recipe_of(ModelConfig(scratch=SCRATCH))
    params = sum(p.numel() for p in build_model(SCRATCH, 1000, seed=0).parameters())
    one = megabytes(plan_of(recipe, Machines()))
    four = megabytes(plan_of(recipe, Machines(ranks_per_node=4)))
    assert one["weights"] == one["gradients"] == pytest.approx(4 * params / 1e6, abs=0.01)
    assert one["optimizer"] == pytest.approx(8 * params / 1e6, abs=0.01)
    for name in ("weights", "gradients", "optimizer"):
        assert four[name] == pytest.approx(one[name] / 4, abs=0.01)
    assert "gathered" not in one and "its weights" not in one, "the engine decodes with the learner's weights"
    assert four["its weights"] == one["weights"]
    assert one["KV"] == four["KV"] == pytest.approx(256 * 125 * 4 * 2 * 3 * 16 * 4 / 1e6, rel=0.01)
    assert one["logits"] == pytest.approx(256 * 1000 * 4 / 1e6, abs=0.01)


def test_copies_on_every_node_are_parted_over_its_ranks_alone() -> None:
    machines = Machines(nodes=2, ranks_per_node=4)
    all_, node = (
        megabytes(plan_of(recipe_of(ModelConfig(scratch=SCRATCH, sharding=sharding)), machines))
        for sharding in ("all", "node")
    )
    for name in ("weights", "gradients", "optimizer"):
        assert node[name] == pytest.approx(2 * all_[name], abs=0.02)
    assert node["gathered"] == all_["gathered"] and node["activations"] == all_["activations"] > 0


def test_a_configuration_is_enough(tmp_path: Path) -> None:
    """No weights are read: the numbers of a model of 14.8 billion parameters come in no time."""
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 5120,
        "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 17408, "vocab_size": 151936, "tie_word_embeddings": False,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    size = measure(ModelConfig(path=str(tmp_path), dtype="bfloat16"))
    assert not isinstance(size, str)
    assert size.parameters == 14_768_307_200 and size.dtype_bytes == 2
    assert size.kv_values_per_token * size.dtype_bytes == 163_840


def test_an_unknown_model_is_said_to_be_unknown() -> None:
    plan = plan_of(recipe_of(ModelConfig(path="nobody/nothing")), Machines())
    assert "memory: not known" in plan and "'nobody/nothing' is not on this machine" in plan


@pytest.mark.parametrize(("nodes", "ranks"), [(1, 1), (1, 4), (3, 8)])
def test_every_node_has_its_command(nodes: int, ranks: int) -> None:
    machines = Machines(nodes=nodes, ranks_per_node=ranks)
    plan = plan_of(recipe_of(ModelConfig(scratch=SCRATCH)), machines)
    commands = [line for line in plan.splitlines() if "rocstar" in line and "r.toml" in line]
    if nodes > 1:
        assert [re.findall(r"--node-rank=(\d+)", line) for line in commands] == [[str(k)] for k in range(nodes)]
        assert all(f"--nnodes={nodes} " in line and f" --nproc-per-node={ranks} " in line for line in commands)
    elif ranks > 1:
        assert len(commands) == 1 and f"--nproc-per-node={ranks}" in commands[0]
    else:
        assert commands[0].endswith("rocstar train r.toml")


def test_the_world_is_torchruns_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Machines.parse(None) == Machines()
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert Machines.parse(None) == Machines(nodes=2, ranks_per_node=8)
    assert Machines.parse("3x4") == Machines(nodes=3, ranks_per_node=4)
    for wrong in ("8", "0x8", "8x", "axb", "8x8x8", "8x8+", "8x8+0x8"):
        with pytest.raises(ConfigError, match="NODESxGPUS"):
            Machines.parse(wrong)
    for huge in ("999999999999x8", "8x100001", "1x8+100001x8"):
        with pytest.raises(ConfigError, match="has a number above 100000"):
            Machines.parse(huge)


@pytest.mark.parametrize(("tokens", "worst"), [(0, 256 * 100 * 9), (900, 256 * 900), (150, 256 * 250)])
def test_branches_are_in_the_worst_case(tokens: int, worst: int) -> None:
    """Those of a rollout have `fork_tokens` together, or each as many as a rollout."""
    rl = RlConfig(tasks_per_step=32, rollouts_per_task=8, group_size=4, fork="error", fork_width=3, fork_depth=2)
    plan = plan_of(
        recipe_of(ModelConfig(scratch=SCRATCH), rl=rl.model_copy(update={"fork_tokens": tokens})), Machines()
    )
    assert "= 256 trajectories, and 2048 branches of rl.fork at most, 4 kept per task" in plan
    assert f"{worst:,}\n" in plan


@pytest.mark.parametrize(("refill", "worst"), [(0, 25_600), (2, 76_800)])
def test_rounds_of_refill_are_in_the_worst_case(refill: int, worst: int) -> None:
    plan = plan_of(recipe_of(ModelConfig(scratch=SCRATCH), rl=RlConfig(refill=refill)), Machines())
    assert f"{worst:,}\n" in plan and ("rl.refill" in plan) == bool(refill)


def test_the_command_prints_the_plan_and_the_recipe_on_request(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    start = ["recipes/quickstart.toml", "--rl.lr=3e-4", "--output-dir", str(tmp_path / "my run")]
    dry = ["train", *start, "--dry-run", "--world=2x2"]
    assert main(dry) == 0
    printed = capsys.readouterr().out
    assert printed.count(f"-m rocstar.train {shlex.join(start)}\n") == 2
    assert printed.startswith("quickstart: ") and printed.count("\n") < 35 and "--node-rank=1" in printed
    assert main([*dry, "--show-recipe"]) == 0
    shown = capsys.readouterr().out
    assert tomllib.loads(shown)["run"]["name"] == "quickstart" and shown.startswith("# quickstart: ")
    for option in ("--world=2x2", "--show-recipe", "--json", "--gpu-memory-gb=8"):
        assert main(["train", "recipes/quickstart.toml", option]) == 2
        assert f"{option.partition('=')[0]} is an option of --dry-run" in capsys.readouterr().err


def servers_of(**engine: object) -> Recipe:
    config = EngineConfig.model_validate({"kind": "sglang", **engine})
    return recipe_of(ModelConfig(scratch=SCRATCH), engine=config)


def test_every_gpu_has_its_line_and_every_server_its_command() -> None:
    recipe = servers_of(replicas=[[2, 3], [4, 5]], args={"mem-fraction-static": 0.8}, policy="thunder")
    plan = plan_of(recipe, Machines(ranks_per_node=2))
    params = sum(p.numel() for p in build_model(SCRATCH, 1000, seed=0).parameters())
    owners = re.findall(r"GPU (\d):  (learner rank \d|server \d)", plan)
    assert owners == [
        *(("0", "learner rank 0"), ("1", "learner rank 1"), ("2", "server 0"), ("3", "server 0")),
        *(("4", "server 1"), ("5", "server 1")),
    ]
    assert f"{4 * params / 2 / 1e6:.2f} MB of weights" in plan, "tensor parallelism over two GPUs"
    (first, second) = re.findall(r"server \d:  CUDA_VISIBLE_DEVICES=(\S+) .* (--dtype .*)", plan)
    assert first == ("2,3", "--dtype float32 --tp-size 2 --mem-fraction-static 0.8")
    assert second[0] == "4,5" and "on each node behind a thunder scheduler" in plan
    assert "engine: embedded" not in plan


def test_servers_that_make_room_share_the_learners_gpus() -> None:
    plan = plan_of(servers_of(replicas=[[0], [1]], placement="restart"), Machines(ranks_per_node=2))
    for gpu in (0, 1):
        (line,) = re.findall(rf"GPU {gpu}:  (.*)", plan)
        assert "while no server runs" in line and f"server {gpu}" in line


def test_a_world_is_of_gpus_of_which_servers_apart_have_theirs() -> None:
    apart = servers_of(replicas=[[2], [3]]).engine
    assert Machines.parse("8x8", apart) == Machines(nodes=8, ranks_per_node=6)
    assert Machines.parse("8x4", apart) == Machines(nodes=8, ranks_per_node=2)
    in_turns = servers_of(replicas=[[0], [1]], placement="restart").engine
    assert Machines.parse("2x2", in_turns) == Machines(nodes=2, ranks_per_node=2)
    assert Machines.parse("2x2", servers_of(replicas=2).engine) == Machines(nodes=2, ranks_per_node=2)
    with pytest.raises(ConfigError, match="names GPU 3, and a node of 3 has 0 to 2"):
        Machines.parse("8x3", apart)
    with pytest.raises(ConfigError, match="leaves the learner none of a node's 2 GPUs"):
        Machines.parse("8x2", servers_of(replicas=[[0, 1]]).engine)


def test_nodes_that_only_serve_have_their_map_and_their_command(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = servers_of(replicas=[[2, 3]], args={"mem-fraction-static": 0.8})
    machines = Machines.parse("2x4+1x8", recipe.engine)
    assert machines == Machines(nodes=2, ranks_per_node=2, serving_nodes=1, serving_gpus=8)
    assert machines.num_servers(recipe.engine) == 2 * 1 + 1 * 4
    plan = plan_of(recipe, machines)
    apart = plan.partition("node 2 to 2, which only serve:")[2]
    assert re.findall(r"GPU (\d):  (\w+ \w+)", apart) == [(str(k), f"server {k // 2}") for k in range(8)]
    assert len(re.findall(r"server \d:  CUDA_VISIBLE_DEVICES=", apart)) == 4
    kinds = re.findall(r"torchrun --nnodes=3 --master-addr=NODE0 \S+ (.*) --node-rank=(\d)", plan)
    learn, serve = "--nproc-per-node=2", "--nproc-per-node=1 --role=server"
    assert kinds == [(learn, "0"), (learn, "1"), (serve, "2")]
    with pytest.raises(ConfigError, match="set it to 'sglang'"):
        plan_of(recipe_of(ModelConfig(scratch=SCRATCH)), machines)
    for name, value in {"WORLD_SIZE": "5", "LOCAL_WORLD_SIZE": "2", "ROLE_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    assert Machines.parse(None) == Machines(nodes=2, ranks_per_node=2, serving_nodes=1)
    assert Machines.parse(None).all_nodes == 3
    plan = plan_of(recipe, Machines.parse(None))
    assert "node 2 to 2, which only serve: on each as many servers of 2 GPUs as it has room for" in plan
    assert Machines.parse(None).num_servers(recipe.engine) == 3


def test_servers_without_gpus() -> None:
    plan = plan_of(servers_of(replicas=2, args={"device": "cpu"}), Machines())
    assert "GPUs: none is named" in plan and plan.count("sglang.launch_server") == 2

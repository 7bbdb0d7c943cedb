"""Adapters learn and nothing else does; what is served and saved is the model with them in it."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from rocstar.engine.inference.base import Sampling
from rocstar.engine.inference.embedded.embedded import EmbeddedEngine
from rocstar.train.learner import adapters, checkpoint, packed_layers
from rocstar.train.learner.adapters import Adapters, MergedWeights
from rocstar.train.learner.batch import MicroBatch, pack
from rocstar.train.learner.claims import check_folder
from rocstar.train.learner.gather import planned, write_owned
from rocstar.train.learner.learner import Learner
from rocstar.train.learner.scratch import build_model
from rocstar.train.learner.sharding import load_learner
from rocstar.train.learner.world import World
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import parse_recipe
from rocstar.train.recipe.model_config import LoraConfig

from ...fakes.tiny import ADAMW, SCRATCH, assert_same_weights, make_example

LORA = LoraConfig(rank=4, alpha=12)


def made(config: LoraConfig = LORA, *, is_trained: bool = True, dtype: torch.dtype = torch.float32) -> Any:
    """A model with adapters; `is_trained`: their B is not zero."""
    model: Any = build_model(SCRATCH, 60, seed=3).to(dtype)  # type: ignore[arg-type]
    adapters.add_adapters(model, config, seed=5, base="somewhere")
    if is_trained:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(0.0, 0.1, generator=generator)
    return model


def micros(ids: list[int], prompt: int) -> list[MicroBatch]:
    mask = [k >= prompt for k in range(len(ids))]
    return pack([make_example(ids, mask, weight=0.25)], tokens_per_microbatch=64)


ROW = micros([3, 9, 4, 7, 7, 1, 20, 33], 2)


def merged(model: PreTrainedModel) -> Any:
    """Another model with the weights that would be served."""
    other = build_model(SCRATCH, 60, seed=99)
    source = MergedWeights(model)
    own = dict(other.named_parameters())
    assert source.shapes() == {name: tuple(weight.shape) for name, weight in own.items()}
    with torch.no_grad():
        for name in source.shapes():
            own[name].copy_(source.tensor(name))
    return other


async def test_the_engine_says_what_the_learner_says() -> None:
    model = made()
    prompt, engine_model = [3, 9, 4], build_model(SCRATCH, 60, seed=99)
    with ThreadPoolExecutor(1) as thread:
        async with EmbeddedEngine(engine_model, max_running=1, thread=thread) as engine:
            await engine.publish(1, MergedWeights(model))
            said = await engine.generate(
                prompt,
                max_new_tokens=12,
                stop_ids=frozenset(),
                sampling=Sampling(temperature=1.0),
                seed=11,
                request_id="one",
                deadline=None,
            )
    rows = micros([*prompt, *said.ids], len(prompt))
    (logprobs_T,) = Learner(model).logprobs(rows, 1.0)
    torch.testing.assert_close(logprobs_T, torch.tensor(said.logprobs), atol=1e-5, rtol=0)
    (plain_T,) = Learner(made(is_trained=False)).logprobs(rows, 1.0)
    assert float((plain_T - logprobs_T).abs().max()) > 0.01, "the adapters are in it"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_merge_adds_alpha_over_rank_times_the_product(dtype: torch.dtype) -> None:
    model = made(dtype=dtype)
    layer = model.model.layers[1].mlp.down_proj
    a, b = layer.lora_A["default"].weight.double(), layer.lora_B["default"].weight.double()
    assert (a.shape, b.shape) == ((4, 64), (32, 4))
    expected = layer.base_layer.weight.double() + 12.0 / 4 * (b @ a)
    found = MergedWeights(model).tensor("model.layers.1.mlp.down_proj.weight")
    assert found.dtype == dtype
    rtol = 1e-6 if dtype == torch.float32 else 2**-8
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=rtol)
    norm = "model.layers.1.input_layernorm.weight"
    assert torch.equal(MergedWeights(model).tensor(norm), dict(model.named_parameters())[norm])


def test_only_adapters_move_and_have_moments() -> None:
    model = made()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    learner = Learner(model)
    learner.use(ADAMW)
    for _ in range(3):
        learner.imitation_step(ROW)
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved == {name for name in before if "lora_" in name}
    assert len(moved) == 2 * 7 * 2
    (optimizer,) = learner.optimizers.optimizers
    assert len(optimizer.state) == len(moved)
    assert {name for name, p in model.named_parameters() if p.grad is not None} == moved


def gradients(model: PreTrainedModel) -> dict[str, Tensor]:
    learner = Learner(model)
    learner.imitation_backward(ROW[0])
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("targets", [None, ["q_proj", "up_proj"]])
def test_packed_layers_make_the_gradients_of_pefts_own_modules(
    targets: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = LORA if targets is None else LoraConfig(rank=3, targets=targets)
    mine = gradients(made(config))
    monkeypatch.setattr(packed_layers, "install", lambda model: False)
    theirs = gradients(made(config))
    assert mine.keys() == theirs.keys() and mine
    for name, gradient in mine.items():
        torch.testing.assert_close(gradient, theirs[name], atol=1e-6, rtol=1e-4)


def test_a_layer_run_again_in_backward_makes_the_same_gradients() -> None:
    from rocstar.train.learner.policy_model import checkpoint_activations

    model = made()
    kept = gradients(copy.deepcopy(model))
    checkpoint_activations(model)
    for name, gradient in gradients(model).items():
        assert torch.equal(gradient, kept[name]), name


def test_a_seed_gives_the_adapters_and_leaves_the_generator() -> None:
    before = torch.random.get_rng_state()
    one, two = made(is_trained=False), made(is_trained=False)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert_same_weights(one, two)
    assert all(not p.any() for name, p in one.named_parameters() if "lora_B" in name), "nothing is changed yet"


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated")  # peft asks transformers for it
def test_what_is_saved_is_read_by_peft_and_by_us(tmp_path: Path) -> None:
    from peft import PeftModel

    model = made()
    saved = Adapters.of(model)
    assert saved is not None
    saved.save(tmp_path / "adapter")
    theirs = PeftModel.from_pretrained(build_model(SCRATCH, 60, seed=3), str(tmp_path / "adapter"))
    assert theirs.peft_config["default"].base_model_name_or_path == "somewhere"
    ids = torch.tensor([[3, 9, 4, 7]])
    with torch.no_grad():
        expected = merged(model)(input_ids=ids).logits
        torch.testing.assert_close(theirs(input_ids=ids).logits, expected, atol=1e-5, rtol=1e-5)
    ours = made(is_trained=False)
    adapters.load_adapters(tmp_path / "adapter", ours)
    assert_same_weights(model, ours)
    other = made(LoraConfig(rank=2))
    with pytest.raises(ConfigError, match="another rank"):
        adapters.load_adapters(tmp_path / "adapter", other)
    with pytest.raises(ConfigError, match="cannot be read"):
        adapters.load_adapters(tmp_path / "nothing", other)


def test_a_learner_begins_with_a_checkpoints_adapters_on_the_recipes_base(tmp_path: Path) -> None:
    base, folder = tmp_path / "base", tmp_path / "step_7"
    build_model(SCRATCH, 60, seed=3).save_pretrained(base)
    model = made()
    merged(model).save_pretrained(folder)
    saved = Adapters.of(model)
    assert saved is not None
    saved.save(folder / adapters.FOLDER)
    settings = {"run": {"seed": 5}, "model": {"path": str(base)}, "lora": {"rank": 4, "alpha": 12}}
    recipe, alone = parse_recipe(settings, where="test"), World(rank=0, size=1)
    for path, expected in ((folder, model), (base, made(is_trained=False))):
        found = load_learner(str(path), alone, recipe)
        for (name, a), b in zip(found.named_parameters(), expected.parameters(), strict=True):
            assert torch.equal(a, b) and a.requires_grad == b.requires_grad, name


def test_a_model_without_adapters_is_served_as_it_is() -> None:
    model = build_model(SCRATCH, 60, seed=3)
    assert not adapters.has_adapters(model) and Adapters.of(model) is None
    for weight, (name, parameter) in zip(adapters.weights_of(model), model.named_parameters(), strict=True):
        assert (weight.name, weight.parameter) == (name, parameter)
        assert weight.whole().data_ptr() == parameter.data_ptr()


def test_a_folder_for_servers_has_the_merged_weights(tmp_path: Path) -> None:
    model = made()
    tokenizer: Any = SimpleNamespace(save_pretrained=lambda folder: None)
    checkpoint.save_shell(tmp_path, model, tokenizer)
    assert write_owned(tmp_path, planned(model, 1, torch.bfloat16), 0) is None
    assert {one.dtype for one in check_folder(tmp_path).tensors.values()} == {"BF16"}
    found: Any = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    for (name, weight), expected in zip(found.named_parameters(), merged(model).parameters(), strict=True):
        assert torch.equal(weight, expected.bfloat16()), name


def test_frozen_weights_go_away_and_adapters_stay() -> None:
    """torch lets a weight go from a GPU to the CPU, and none between the devices that are here."""
    device = torch.device("meta")

    def weight(*, learns: bool, at: torch.device) -> Any:
        data = torch.zeros(3, dtype=torch.bfloat16, device=at)
        size = {"numel": data.numel, "element_size": data.element_size}
        return SimpleNamespace(requires_grad=learns, device=at, data=data, **size)

    here = torch.device("cpu")
    frozen, away = weight(learns=False, at=here), weight(learns=False, at=device)
    learns = weight(learns=True, at=here)
    assert adapters.send_frozen([frozen, learns, away], device) == 6
    assert (frozen.data.device, learns.data.device) == (device, here)


def test_a_learner_gets_its_frozen_weights_back_before_a_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU has no other device: they are hidden in memory instead."""
    model, other = made(), made()
    hidden = {id(p): p.detach().clone() for p in model.parameters()}
    sent: list[str] = []

    def send_away(parameters: Any, device: torch.device) -> int:
        sent.append("away")
        return sum(p.data.zero_().numel() for p in parameters if not p.requires_grad)

    def send_back(parameters: Any, device: torch.device) -> int:
        sent.append("back")
        return sum(p.data.copy_(hidden[id(p)]).numel() for p in parameters if not p.requires_grad)

    monkeypatch.setattr("rocstar.train.learner.memory_release.send_frozen", send_away)
    monkeypatch.setattr("rocstar.train.learner.learner.send_frozen", send_back)
    learner, stays = Learner(model), Learner(other)
    for one in (learner, stays):
        one.use(ADAMW)
    learner.offloads_moments = True
    assert learner.release_memory().frozen > 0
    (mine,), (theirs,) = learner.logprobs(ROW, 1.0), stays.logprobs(ROW, 1.0)
    assert torch.equal(mine, theirs)
    learner.release_memory()
    learner.imitation_step(ROW)
    stays.imitation_step(ROW)
    assert sent == ["away", "back", "away", "back"]
    assert_same_weights(model, other)


def test_targets_that_are_not_there_are_named() -> None:
    with pytest.raises(ConfigError, match=r"names 'w_proj'.*it has q_proj, k_proj"):
        made(LoraConfig(rank=4, targets=["q_proj", "w_proj"]))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"lora": {"rank": 4}}, "model.path = 'scratch' makes one"),
        ({"lora": {"rank": 4, "targets": ["lm_head"]}, "model": {"path": "x"}}, "may not be adapted"),
        ({"lora": {"rank": 4, "targets": ["q_proj", "q_proj"]}, "model": {"path": "x"}}, "twice"),
        ({"lora": {"rank": 4, "targets": ["self_attn.q_proj"]}, "model": {"path": "x"}}, "last part"),
        ({"lora": {"rank": 4, "dropout": 0.1}, "model": {"path": "x"}}, "dropout"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(values: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_recipe(values, where="test")


@pytest.fixture(scope="session")
def over_ranks(run_ranks: Any) -> Path:
    """The results of one process and of two ranks; see ranks/adapt.py."""
    folder: Path = run_ranks("adapt.py")
    return folder


def test_two_ranks_learn_what_one_process_learns_and_stay_alike(over_ranks: Path) -> None:
    """Through a checkpoint of the optimizer, too: the two ranks go on from it."""
    one, two = (torch.load(over_ranks / f"learned {size}.pt") for size in (1, 2))
    assert len(one["norms"]) == 6 and min(one["norms"]) > 0.01
    assert two["norms"] == pytest.approx(one["norms"], rel=1e-4)
    for name, weight in one["merged"].items():
        torch.testing.assert_close(two["merged"][name], weight, rtol=0, atol=1e-5, msg=name)
    first, second = (torch.load(over_ranks / f"adapters 2 {rank}.pt") for rank in range(2))
    assert first and all(torch.equal(second[name], weight) for name, weight in first.items())


def test_rank_0_writes_what_two_ranks_have_learned(over_ranks: Path) -> None:
    merged = torch.load(over_ranks / "learned 2.pt")["merged"]
    written = load_file(over_ranks / "run 2" / "files" / "model.safetensors")
    assert written.keys() == merged.keys()
    assert all(torch.equal(written[name], weight) for name, weight in merged.items())
    saved = over_ranks / "run 2" / "checkpoints" / "step_1"
    assert (saved / "COMPLETE").exists() and (saved / "adapter" / "adapter_model.safetensors").exists()

"""Adapters on a frozen model (LoRA, arXiv 2106.09685), attached by peft; only they are trained.

    learner:          x W' + alpha / rank * x A' B'     W in the recipe's type and frozen, A and B float32
    served and saved: W + alpha / rank * B A            added in float32, rounded once to the type of W

Names outside are those of the model without adapters: `q_proj.base_layer.weight` is `q_proj.weight`. Merged
tensors are made one at a time, on request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rocstar.train.learner.host_memory import sent
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.model_config import LoraConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "default"
"""peft's name of an unnamed adapter."""
FOLDER, WEIGHTS = "adapter", "adapter_model.safetensors"
"""Folder of a checkpoint's adapters, in the form of peft's `from_pretrained`."""
_BASE, _PREFIX = ".base_layer.", "base_model.model."


def add_adapters(model: PreTrainedModel, config: LoraConfig, *, seed: int, base: str = "") -> None:
    """Add adapters to the model and freeze the rest. The model's output is unchanged: their B is zero.

    Args:
        model: changed in place; adapters of a model on `meta` are on `meta`.
        config: the recipe's, with a rank.
        seed: for their A; torch's generator is not changed.
        base: the model's source, stored for loading the adapters alone.

    Raises:
        ConfigError: the model has no module of some name in `config.targets`.
    """
    from peft import LoraConfig as PeftConfig
    from peft import inject_adapter_in_model

    linears = (path for path, module in model.named_modules() if isinstance(module, nn.Linear))
    names = dict.fromkeys(path.rpartition(".")[2] for path in linears)
    for name in config.targets:
        if name not in names:
            raise ConfigError(
                f"lora.targets names {name!r}, and {type(model).__name__} has no linear module of that name; "
                f"it has {', '.join(name for name in names if name != 'lm_head')}"
            )
    wanted = PeftConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=list(config.targets),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
        base_model_name_or_path=base or None,
    )
    any_model: Any = model  # transformers' own mixin is another type to peft
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(wanted, any_model, low_cpu_mem_usage=next(model.parameters()).is_meta)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(_is_adapter(name))
        if _is_adapter(name):
            parameter.data = parameter.data.float()
    any_model.eval()  # as a loaded model is; nothing in it drops out


def _is_adapter(name: str) -> bool:
    return ".lora_A." in name or ".lora_B." in name


def has_adapters(model: nn.Module) -> bool:
    """Whether only adapters of the model learn."""
    return any(hasattr(module, "lora_A") for module in model.modules())


def base_of(linear: Any) -> Any:
    """The module that an adapter adds to; itself where it has none."""
    return linear.base_layer if hasattr(linear, "lora_A") else linear


def is_frozen(linear: Any) -> bool:
    """Whether its own weight does not learn."""
    return not base_of(linear).weight.requires_grad


def adapted(x: Tensor, linear: Any) -> Tensor:
    """Return the output of a frozen linear module for rows x, its adapter included."""
    base = base_of(linear)
    return _with_adapter(F.linear(x, base.weight, base.bias), x, linear)


def add_adapted(residual: Tensor, x: Tensor, linear: Any) -> Tensor:
    """residual + `adapted`, added by the matrix product."""
    base = base_of(linear)
    out = torch.addmm(residual, x, base.weight.T)
    return _with_adapter(out if base.bias is None else out + base.bias, x, linear)


def _with_adapter(out: Tensor, x: Tensor, linear: Any) -> Tensor:
    """The adapter's part added, computed in the type of x."""
    if not hasattr(linear, "lora_A"):
        return out
    a, b = (pair[NAME].weight.to(x.dtype) for pair in (linear.lora_A, linear.lora_B))
    return torch.addmm(out, F.linear(x, a), b.T, alpha=linear.scaling[NAME])


@dataclass(frozen=True, slots=True)
class Weight:
    """Return a tensor of the model with the adapter merged."""

    name: str
    parameter: Tensor
    """The learner's tensor: the complete one, or the base of an adapter."""
    layer: Any = None
    """The module with that adapter; None where there is none."""

    def whole(self) -> Tensor:
        """The tensor with its adapter in it; the parameter itself where it has none."""
        own = self.parameter.detach()
        if self.layer is None:
            return own
        a, b = (pair[NAME].weight.detach() for pair in (self.layer.lora_A, self.layer.lora_B))
        wide = own.to(b.device, torch.float32)
        return torch.addmm(wide, b, a, alpha=self.layer.scaling[NAME]).to(own.dtype)


def weights_of(model: nn.Module) -> list[Weight]:
    """Every tensor that is served and saved, adapters merged; without adapters the parameters. A tied one
    appears once."""
    adapted_ones = ((path, module) for path, module in model.named_modules() if hasattr(module, "lora_A"))
    layers = {f"{path}{_BASE}weight": module for path, module in adapted_ones}
    return [
        Weight(name.replace(_BASE, "."), parameter, layers.get(name))
        for name, parameter in model.named_parameters()
        if not _is_adapter(name)
    ]


class MergedWeights:
    """The learner's weights on their way to an engine, merged one by one when they are asked for.

    They must not change while a publish is under way.
    """

    def __init__(self, model: nn.Module) -> None:
        self._weights = {weight.name: weight for weight in weights_of(model)}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(weight.parameter.shape) for name, weight in self._weights.items()}

    def tensor(self, name: str) -> Tensor:
        return self._weights[name].whole()


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """The adapters of a model, copied to CPU memory, as peft saves them."""

    tensors: Mapping[str, Tensor]
    config: Any
    """peft's."""

    @staticmethod
    def of(model: PreTrainedModel) -> Adapters | None:
        """None for a model without."""
        if not has_adapters(model):
            return None
        any_model: Any = model
        found = {_saved_name(name): weight.to("cpu", copy=True) for name, weight in _adapters(model)}
        return Adapters(tensors=found, config=any_model.peft_config[NAME])

    def save(self, folder: Path) -> None:
        self.config.save_pretrained(str(folder))
        save_file(dict(self.tensors), folder / WEIGHTS, metadata={"format": "pt"})


def load_adapters(folder: Path, model: nn.Module) -> None:
    """Give the model's adapters the values that `Adapters.save` wrote. ConfigError where they are others'."""
    path = folder / WEIGHTS
    try:
        saved = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"adapters cannot be read from {str(path)!r}: {error}") from None
    own = {_saved_name(name): weight for name, weight in _adapters(model)}
    if {n: w.shape for n, w in own.items()} != {n: w.shape for n, w in saved.items()}:
        raise ConfigError(
            f"{str(path)!r} holds adapters of another rank, other targets or another model than the recipe's"
        )
    for name, weight in own.items():
        weight.copy_(saved[name])


def _adapters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return ((name, p.detach()) for name, p in model.named_parameters() if _is_adapter(name))


def _saved_name(name: str) -> str:
    """peft's files know nothing of an adapter's name, and everything of its wrapper's."""
    return _PREFIX + name.replace(f".{NAME}.", ".")


def send_frozen(parameters: Iterable[nn.Parameter], device: torch.device) -> int:
    """Move what does not learn to `device`. Returns how many bytes moved."""
    away = [p for p in parameters if not p.requires_grad and p.device != device]
    for parameter, data in zip(away, sent([p.data for p in away], device), strict=True):
        parameter.data = data
    return sum(parameter.data.nbytes for parameter in away)

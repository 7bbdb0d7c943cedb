"""The decoder layers of Llama-like models as the learner runs them.

The arithmetic is the model's, in fewer passes over memory (kernels/layers.py). The last layer computes only
keys and values for tokens whose hidden state is not read: their queries, output projection and MLP would be
unused. Linear modules may have adapters (adapters.py); a frozen weight gets no gradient, and its input is not
kept.

Legend: T flat tokens, R of them kept, C hidden size, H query heads, K key-value heads, D head size.
"""

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.mistral.modeling_mistral import MistralDecoderLayer
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from rocstar.kernels import layers
from rocstar.kernels.rows import pick_rows
from rocstar.train.learner.adapters import adapted, add_adapted, base_of, is_frozen
from rocstar.train.learner.packed_attention import PackedAttention

FAMILIES = (LlamaDecoderLayer, MistralDecoderLayer, Qwen2DecoderLayer, Qwen3DecoderLayer)
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def install(model: PreTrainedModel) -> bool:
    """Let forwards that bring a `PackedAttention` run as described; all others stay as they are.

    Returns whether it did: then the decoder's hidden states are those of the kept tokens. It does not for a
    model of another family, or one with replaced modules.
    """
    any_model: Any = model
    found = list(any_model.get_decoder().layers)
    if model.config.hidden_act != "silu" or not all(_is_plain(layer) for layer in found):
        return False
    for layer in found:
        layer.is_last = layer is found[-1]
        layer.forward = MethodType(_forward, layer)
    return True


def _is_plain(layer: nn.Module) -> bool:
    """Nothing in it but what its family has."""
    if not isinstance(layer, FAMILIES):
        return False
    parts = {**dict(layer.self_attn.named_children()), **dict(layer.mlp.named_children())}
    norms: list[nn.Module] = [layer.input_layernorm, layer.post_attention_layernorm]
    norms += [parts[name] for name in ("q_norm", "k_norm") if name in parts]
    return all(type(base_of(parts[name])) is nn.Linear for name in LINEARS) and all(
        type(norm).__name__.endswith("RMSNorm") for norm in norms
    )


def _forward(layer: Any, hidden_states: Tensor, *, attention: Any, **others: Any) -> Tensor:
    if not isinstance(attention, PackedAttention):
        plain: Tensor = type(layer).forward(layer, hidden_states, attention=attention, **others)
        return plain
    cos_TD, sin_TD = (x[0] for x in others["position_embeddings"])
    kept_R = attention.kept_R if layer.is_last else None
    out_TC = _mlp(layer, _attention(layer, hidden_states[0], cos_TD, sin_TD, attention, kept_R))
    # Not a view: FSDP attaches hooks to the output. No other code has the tensor.
    out: Tensor = torch.ops.aten._unsafe_view(out_TC, [1, *out_TC.shape])
    return out


def _attention(
    layer: Any, hidden_TC: Tensor, cos_TD: Tensor, sin_TD: Tensor, attention: PackedAttention, kept_R: Tensor | None
) -> Tensor:
    """The first half of the layer: hidden_TC, or hidden_RC of the kept tokens."""
    own = layer.self_attn
    if kept_R is None:
        hidden_TC, q, k, v = _norm_project(layer.input_layernorm, hidden_TC, own.q_proj, own.k_proj, own.v_proj)
        q_cos, q_sin = cos_TD, sin_TD
    else:
        normed_TC = _normalise(layer.input_layernorm, hidden_TC)
        k, v = _project(normed_TC, own.k_proj, own.v_proj)
        (q,) = _project(pick_rows(normed_TC, kept_R), own.q_proj)
        q_cos, q_sin, hidden_TC = cos_TD[kept_R], sin_TD[kept_R], pick_rows(hidden_TC, kept_R)
    q, k, v = (x.view(len(x), -1, own.head_dim) for x in (q, k, v))
    q = _rotate(q, q_cos, q_sin, getattr(own, "q_norm", None))
    k = _rotate(k, cos_TD, sin_TD, getattr(own, "k_norm", None))
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    if kept_R is None:
        out = attention.attend(own.layer_idx, q, k, v, own.scaling)
    else:
        out = attention.attend_kept(q, k, v, own.scaling)
    if is_frozen(own.o_proj):
        return add_adapted(hidden_TC, out.flatten(1), own.o_proj)
    return _with_bias(layers.add_linear(hidden_TC, out.flatten(1), own.o_proj.weight), own.o_proj)


def _mlp(layer: Any, hidden_TC: Tensor) -> Tensor:
    mlp = layer.mlp
    hidden_TC, gate, up = _norm_project(layer.post_attention_layernorm, hidden_TC, mlp.gate_proj, mlp.up_proj)
    if is_frozen(mlp.down_proj):
        return add_adapted(hidden_TC, F.silu(gate) * up, mlp.down_proj)
    return _with_bias(layers.add_gated(hidden_TC, gate, up, mlp.down_proj.weight), mlp.down_proj)


def _normalise(norm: Any, x: Tensor) -> Tensor:
    return layers.rms_norm(x, norm.weight, norm.variance_epsilon)


def _rotate(x_THD: Tensor, cos_TD: Tensor, sin_TD: Tensor, norm: Any) -> Tensor:
    """Rotate heads; a norm of heads comes first where the model has one."""
    if norm is None:
        return layers.rotate(x_THD, cos_TD, sin_TD)
    return layers.norm_rotate(x_THD, norm.weight, norm.variance_epsilon, cos_TD, sin_TD)


def _project(x: Tensor, *linears: Any) -> tuple[Tensor, ...]:
    if is_frozen(linears[0]):
        return tuple(adapted(x, linear) for linear in linears)
    return layers.linears(x, [linear.weight for linear in linears], [linear.bias for linear in linears])


def _norm_project(norm: Any, x: Tensor, *linears: Any) -> tuple[Tensor, ...]:
    """x and the products of its norm; see `layers.norm_linears`."""
    if is_frozen(linears[0]):
        return x, *_project(_normalise(norm, x), *linears)
    weights, biases = [linear.weight for linear in linears], [linear.bias for linear in linears]
    return layers.norm_linears(x, norm.weight, norm.variance_epsilon, weights, biases)


def _with_bias(out: Tensor, linear: Any) -> Tensor:
    return out if linear.bias is None else out + linear.bias

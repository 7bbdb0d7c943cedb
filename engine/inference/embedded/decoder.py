"""The forward of a Llama-like model straight over its weights, for decoding in float32.

The learner runs the model's own modules; for a few rows at a time their Python costs more than their
arithmetic. This is the same arithmetic in fewer operations: rounding differs, by about 1e-6 in log-probs.

Shapes: T flat tokens, N rows whose logits are asked for, C hidden size, H query heads, K key-value heads,
D head size, V vocabulary.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen2ForCausalLM, Qwen3ForCausalLM

from rocstar.engine.inference.embedded import native
from rocstar.engine.inference.embedded.attention import Attention

FAMILIES = (LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)


class Forward(Protocol):
    """Logits behind some of the tokens of a flat batch."""

    def __call__(self, ids_T: Tensor, positions_T: Tensor, attention: Attention, num_logits: int) -> Tensor:
        """Float32 logits_NV behind the first `num_logits` tokens; the others only enter the cache."""
        ...


def forward_of(model: PreTrainedModel, *, spare_threads: int = 0) -> Forward:
    """The fastest forward that computes what the model's own does, else the model's own.

    spare_threads: of torch's, for others who work meanwhile, where bits do not depend on threads.
    """
    modules = _Modules(model)
    if not _is_plain(model):
        return modules
    decoder: Forward = _Decoder(model)
    if native.fits(model):
        decoder = native.NativeForward(model, decoder, spare_threads=spare_threads)

    def forward(ids_T: Tensor, positions_T: Tensor, attention: Attention, num_logits: int) -> Tensor:
        is_hooked = model._forward_pre_hooks or model._forward_hooks
        return (modules if is_hooked else decoder)(ids_T, positions_T, attention, num_logits)

    return forward


def _is_plain(model: PreTrainedModel) -> bool:
    """A float32 model of a known family, none of its modules replaced or hooked to."""
    if type(model) not in FAMILIES or model.config.hidden_act != "silu":
        return False
    own = (type(model).__module__, "torch.nn.modules.", "transformers.activations")
    return {parameter.dtype for parameter in model.parameters()} == {torch.float32} and all(
        type(module).__module__.startswith(own) and not (module._forward_pre_hooks or module._forward_hooks)
        for module in model.modules()
    )


class _Modules:
    """The model as it is called by everyone else."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model

    def __call__(self, ids_T: Tensor, positions_T: Tensor, attention: Attention, num_logits: int) -> Tensor:
        arguments: dict[str, Any] = {
            "use_cache": False,
            "logits_to_keep": torch.arange(num_logits, device=ids_T.device),
            "attention": attention,
        }
        logits: Tensor = self._model(
            input_ids=ids_T[None], position_ids=positions_T[None], **arguments
        ).logits[0]
        return logits


class _Decoder:
    """Reads the model's parameters at every call: an optimizer step or a publish needs no word to it."""

    def __init__(self, model: Any) -> None:
        self._body, self._head = model.model, model.lm_head
        config = model.config
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._size: int = model.model.layers[0].self_attn.head_dim
        self._eps: float = config.rms_norm_eps
        self._has_head_norms = hasattr(model.model.layers[0].self_attn, "q_norm")

    def __call__(self, ids_T: Tensor, positions_T: Tensor, attention: Attention, num_logits: int) -> Tensor:
        body = self._body
        x_TC = F.embedding(ids_T, body.embed_tokens.weight)
        cos, sin = body.rotary_emb(x_TC, positions_T[None])
        cos_T1D, sin_T1D = cos[0, :, None], sin[0, :, None].clone()
        # rotate_half(x) * sin = roll(x) * (sin with its first half negated)
        sin_T1D[..., : self._size // 2].neg_()
        for index, layer in enumerate(body.layers):
            h_TC = self._norm(x_TC, layer.input_layernorm)
            q_THD, k_TKD, v_TKD = self._project(layer.self_attn, h_TC, cos_T1D, sin_T1D)
            out_THD = attention.attend(
                index,
                q_THD.transpose(0, 1),
                k_TKD.transpose(0, 1),
                v_TKD.transpose(0, 1),
                layer.self_attn.scaling,
            )
            x_TC = _add_linear(x_TC, out_THD.flatten(1), layer.self_attn.o_proj)
            h_TC = self._norm(x_TC, layer.post_attention_layernorm)
            gate = F.silu(_linear(h_TC, layer.mlp.gate_proj), inplace=True)
            x_TC = _add_linear(x_TC, gate.mul_(_linear(h_TC, layer.mlp.up_proj)), layer.mlp.down_proj)
        return _linear(self._norm(x_TC[:num_logits], body.norm), self._head)

    def _project(
        self, attn: Any, h_TC: Tensor, cos_T1D: Tensor, sin_T1D: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys normalised where the family does, and rotated."""
        q_THD = _linear(h_TC, attn.q_proj).view(-1, self._heads, self._size)
        k_TKD = _linear(h_TC, attn.k_proj).view(-1, self._kv_heads, self._size)
        v_TKD = _linear(h_TC, attn.v_proj).view(-1, self._kv_heads, self._size)
        if self._has_head_norms:
            q_THD, k_TKD = self._norm(q_THD, attn.q_norm), self._norm(k_TKD, attn.k_norm)
        half = self._size // 2
        q_THD, k_TKD = (torch.addcmul(x * cos_T1D, x.roll(half, -1), sin_T1D) for x in (q_THD, k_TKD))
        return q_THD, k_TKD, v_TKD

    def _norm(self, x: Tensor, norm: Any) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), norm.weight, self._eps)


def _linear(x: Tensor, linear: nn.Linear) -> Tensor:
    return F.linear(x, linear.weight, linear.bias)


def _add_linear(residual: Tensor, x: Tensor, linear: nn.Linear) -> Tensor:
    out = torch.addmm(residual, x, linear.weight.t())
    return out if linear.bias is None else out.add_(linear.bias)

"""The forward of a Llama-like model straight over its weights, for decoding.

The learner runs the model's own modules; for a few rows at a time their Python costs more than their
arithmetic. This is the same arithmetic in fewer operations: in float32 rounding differs, by about 1e-6 in
log-probs. In half precision, on a GPU, it rounds where the modules do, except that a residual is added before
the product is rounded; steps are replayed as graphs there (graphs.py).

Shapes: T flat tokens, N rows whose logits are asked for, C hidden size, H query heads, K key-value heads,
D head size, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen2ForCausalLM, Qwen3ForCausalLM

from rocstar.engine.inference.embedded import native
from rocstar.engine.inference.embedded.attention import Attention, Forward
from rocstar.engine.inference.embedded.graphs import GraphedDecode, cuda_capture

HALF = (torch.bfloat16, torch.float16)
HEAD_CHUNK = 1 << 24
"""Weights of the head that a CPU converts to another type at a time: 64 MiB in float32."""
FAMILIES = (LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)


def forward_of(model: PreTrainedModel, *, spare_threads: int = 0, head_dtype: torch.dtype | None = None) -> Forward:
    """Return the fastest forward that is equivalent to the model's forward, else the model's forward.

    spare_threads: torch threads left to other work, if bits do not depend on threads.
    head_dtype: dtype of the logits and of the accumulation of the head's product; None: the model's.
    """
    if head_dtype == next(model.parameters()).dtype:
        head_dtype = None
    modules = _Modules(model, head_dtype)
    if not _is_plain(model):
        return modules
    decoder: Forward = _Decoder(model, head_dtype)
    if model.device.type == "cuda" and type(next(model.parameters())) is nn.Parameter:  # no fake tensor
        decoder = GraphedDecode(decoder, native.addresses_of(model), cuda_capture)
    elif is_native(model):
        decoder = native.NativeForward(model, decoder, spare_threads=spare_threads)

    def forward(ids_T: Tensor, positions_T: Tensor, attention: Attention, num_logits: int) -> Tensor:
        is_hooked = model._forward_pre_hooks or model._forward_hooks
        return (modules if is_hooked else decoder)(ids_T, positions_T, attention, num_logits)

    return forward


def is_native(model: PreTrainedModel) -> bool:
    """Return whether the forward is that of native.py, in which a token's bits depend on its own trajectory alone."""
    return _is_plain(model) and native.fits(model)


def _is_plain(model: PreTrainedModel) -> bool:
    """A model of a known family in one type, none of its modules replaced or hooked to.

    The type is float32, or half precision on a GPU: a CPU has no fast half precision.
    """
    if type(model) not in FAMILIES or model.config.hidden_act != "silu":
        return False
    own = (type(model).__module__, "torch.nn.modules.", "transformers.activations")
    dtypes = {parameter.dtype for parameter in model.parameters()}
    known = {torch.float32, *(HALF if model.device.type == "cuda" else ())}
    return (
        len(dtypes) == 1
        and dtypes <= known
        and all(
            type(module).__module__.startswith(own) and not (module._forward_pre_hooks or module._forward_hooks)
            for module in model.modules()
        )
    )


class _Modules:
    """The model as it is called by everyone else."""

    def __init__(self, model: PreTrainedModel, head_dtype: torch.dtype | None = None) -> None:
        self._model, self._head_dtype = model, head_dtype

    def __call__(self, ids_T: Tensor, positions_T: Tensor, attention: Attention, num_logits: int) -> Tensor:
        arguments: dict[str, Any] = {
            "input_ids": ids_T[None],
            "position_ids": positions_T[None],
            "use_cache": False,
            "attention": attention,
        }
        model: Any = self._model
        if self._head_dtype is not None:
            hidden_TC = model.get_decoder()(**arguments).last_hidden_state[0]
            return head_logits(hidden_TC[:num_logits], model.get_output_embeddings(), self._head_dtype)
        kept = torch.arange(num_logits, device=ids_T.device)
        logits: Tensor = model(**arguments, logits_to_keep=kept).logits[0]
        return logits


class _Decoder:
    """Reads the model's parameters at every call: an optimizer step or a publish needs no word to it."""

    def __init__(self, model: Any, head_dtype: torch.dtype | None = None) -> None:
        self._body, self._head = model.model, model.lm_head
        self._head_dtype = head_dtype
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
                index, q_THD.transpose(0, 1), k_TKD.transpose(0, 1), v_TKD.transpose(0, 1), layer.self_attn.scaling
            )
            x_TC = _add_linear(x_TC, out_THD.flatten(1), layer.self_attn.o_proj)
            h_TC = self._norm(x_TC, layer.post_attention_layernorm)
            gate = F.silu(_linear(h_TC, layer.mlp.gate_proj), inplace=True)
            x_TC = _add_linear(x_TC, gate.mul_(_linear(h_TC, layer.mlp.up_proj)), layer.mlp.down_proj)
        return head_logits(self._norm(x_TC[:num_logits], body.norm), self._head, self._head_dtype)

    def _project(self, attn: Any, h_TC: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys normalised where the family does, and rotated."""
        q_THD = _linear(h_TC, attn.q_proj).view(-1, self._heads, self._size)
        k_TKD = _linear(h_TC, attn.k_proj).view(-1, self._kv_heads, self._size)
        v_TKD = _linear(h_TC, attn.v_proj).view(-1, self._kv_heads, self._size)
        if self._has_head_norms:
            q_THD, k_TKD = self._norm(q_THD, attn.q_norm), self._norm(k_TKD, attn.k_norm)
        half = self._size // 2
        if q_THD.dtype in HALF:  # the modules round both products
            q_THD, k_TKD = ((x * cos_T1D).add_(x.roll(half, -1).mul_(sin_T1D)) for x in (q_THD, k_TKD))
        else:
            q_THD, k_TKD = (torch.addcmul(x * cos_T1D, x.roll(half, -1), sin_T1D) for x in (q_THD, k_TKD))
        return q_THD, k_TKD, v_TKD

    def _norm(self, x: Tensor, norm: Any) -> Tensor:
        if x.dtype in HALF:  # the modules round before they scale
            return F.rms_norm(x, (x.shape[-1],), None, self._eps).mul_(norm.weight)
        return F.rms_norm(x, (x.shape[-1],), norm.weight, self._eps)


def head_logits(hidden_NC: Tensor, head: nn.Linear, dtype: torch.dtype | None) -> Tensor:
    """Logits_NV in `dtype`, and summed up in it; None: in that of the hidden states."""
    weight_VC = head.weight
    if dtype is None or dtype == weight_VC.dtype:
        return _linear(hidden_NC, head)
    if hidden_NC.device.type == "cuda":
        logits_NV = torch.mm(hidden_NC, weight_VC.t(), out_dtype=dtype)
    else:
        wide_NC, rows = hidden_NC.to(dtype), max(1, HEAD_CHUNK // weight_VC.shape[1])
        logits_NV = torch.cat([wide_NC @ part.to(dtype).t() for part in torch.split(weight_VC, rows)], dim=1)
    return logits_NV if head.bias is None else logits_NV.add_(head.bias)


def _linear(x: Tensor, linear: nn.Linear) -> Tensor:
    return F.linear(x, linear.weight, linear.bias)


def _add_linear(residual: Tensor, x: Tensor, linear: nn.Linear) -> Tensor:
    out = torch.addmm(residual, x, linear.weight.t())
    return out if linear.bias is None else out.add_(linear.bias)

"""The model as the learner runs it: a Hugging Face decoder, and whatever wants its head.

    microbatch -> decoder -> hidden states of the tokens with loss -> head(hidden, weight of the head)

The head runs inside a forward of the model, which is the root of FSDP: there, and only there, the head's
weight is whole. A tied head is one parameter, and autograd adds up both of its gradients.

Legend: I input tokens, T tokens with loss, R input tokens that predict one or several of them, D hidden size,
V vocabulary.
"""

from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import register_fsdp_forward_method
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from rocstar.engine.inference.embedded import attention
from rocstar.train.learner import packed_layers
from rocstar.train.learner.batch import MicroBatch
from rocstar.train.learner.packed_attention import PackedAttention
from rocstar.train.recipe.errors import ConfigError

Result = TypeVar("Result")
Head = Callable[[Tensor, Tensor], Result]
"""(hidden_TD, weight_VD) -> anything. FSDP must see a tensor with gradient: bare, or in a tuple."""


class PolicyModel:
    """A causal LM whose logits are `hidden @ weight.T` and are never all in memory.

    Invariant: only rows with loss reach the head; a microbatch without any still runs through every module,
    so that no rank of FSDP misses a collective.
    """

    def __init__(self, model: PreTrainedModel, head_dtype: torch.dtype | None = None) -> None:
        """ConfigError for a model whose logits are something else.

        Args:
            model: changed in place.
            head_dtype: type of the logits that heads make; None: that of the hidden states.
        """
        self.head_dtype = head_dtype
        if not is_sharded(model):
            check_head(model)
        attention.install(model)
        model.only_kept = packed_layers.install(model)  # type: ignore[assignment]
        if runs_again(model):
            any_model: Any = model  # transformers has no types for it
            # Inside the layer's hooks, and once, however many `PolicyModel`s it has. Not the last layer: backward
            # begins there and needs its activations at once.
            for layer in any_model.get_decoder().layers[:-1]:
                if not isinstance(layer.forward, partial):
                    layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
        self.model, self.device = model, next(model.parameters()).device
        attention.choose_attention_backends(self.device)
        model.rows_to_head = MethodType(_rows_to_head, model)  # type: ignore[assignment]
        register_fsdp_forward_method(model, "rows_to_head")

    @property
    def is_sharded(self) -> bool:
        """FSDP holds the weights: no other code may use the module's tensors."""
        return is_sharded(self.model)

    def __call__(self, micro: MicroBatch, head: Head[Result]) -> Result:
        rows_to_head: Any = self.model.rows_to_head
        result: Result = rows_to_head(micro, self.device, head)
        return result


def _rows_to_head(model: Any, micro: MicroBatch, device: torch.device, head: Head[Result]) -> Result:
    """A forward of the model: the head's weight is whole from its first line to its last."""
    # At least one token goes all the way: else the last layer's weights would get no gradient on this rank.
    rows_T = micro.rows_T if micro.num_loss_tokens else torch.zeros(1, dtype=torch.long)
    kept_R, places_T = torch.unique(rows_T, return_inverse=True)
    hidden = model.get_decoder()(
        input_ids=micro.ids_I[None].to(device),
        position_ids=micro.positions_I[None].to(device),
        use_cache=False,
        attention=PackedAttention(micro.lengths_S, device, shared_S=micro.shared_S, kept_R=kept_R),
    ).last_hidden_state[0]
    places_T = (places_T if model.only_kept else rows_T)[: micro.num_loss_tokens]
    return head(hidden.index_select(0, places_T.to(device)), model.get_output_embeddings().weight)


def is_sharded(model: nn.Module) -> bool:
    return any(hasattr(parameter, "full_tensor") for parameter in model.parameters())


def check_head(model: PreTrainedModel) -> None:
    """Refuse a model whose logits are not the plain product of hidden states and the head's weight.

    Its own forward is asked, with known hidden states in place of the decoder's: that finds a scale (Cohere,
    Granite), soft-capping (Gemma 2) and whatever else comes before the logits.
    """
    any_model: Any = model  # transformers has no types for these
    head, decoder = any_model.get_output_embeddings(), any_model.get_decoder()
    name = type(model).__name__
    if not isinstance(head, nn.Linear):
        raise ConfigError(f"{name} has {type(head).__name__} as its head; the loss needs a linear layer")
    if getattr(head, "bias", None) is not None:
        raise ConfigError(f"the head of {name} has a bias; the loss is of heads without one")
    if head.weight.is_meta:  # which numbers it holds is no matter
        stand_in = nn.Linear(head.in_features, 8, bias=False)
        any_model.set_output_embeddings(stand_in)
        try:
            check_head(model)
        finally:
            any_model.set_output_embeddings(head)
        return
    weight_VD = head.weight.detach()
    # Along the first rows of the head, so long that a soft cap would bite.
    known_D = weight_VD[:8].sum(0)
    known_D = known_D * (1000.0 / (weight_VD[:8] @ known_D).abs().amax().clamp(min=1e-20))
    decoder.forward = lambda **_: BaseModelOutputWithPast(last_hidden_state=known_D[None, None])
    try:
        with torch.no_grad():
            found_V = any_model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=known_D.device)).logits[0, 0]
    finally:
        del decoder.forward
    expected_V = weight_VD @ known_D
    if not torch.allclose(found_V.float(), expected_V.float(), rtol=1e-2, atol=1.0):
        raise ConfigError(
            f"the logits of {name} are not the product of hidden states and head (a scale or a soft cap?); "
            "the loss does not know such a model"
        )


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Have a `PolicyModel` of the model keep the input of each layer but the last, and run these layers again
    in backward.

    The wrapper is ours: that of transformers depends on the release. Up to 5.17 it is around the hooks of
    FSDP2, which then run twice, and later it is inside the forward that packed_layers.py replaces. Its flag
    `gradient_checkpointing` stays False.
    """
    any_model: Any = model  # transformers has no types for it
    any_model.runs_layers_again = True


def runs_again(model: PreTrainedModel) -> bool:
    """Whether `checkpoint_activations` was called for the model."""
    return getattr(model, "runs_layers_again", False)

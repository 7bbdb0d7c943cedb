"""Assign memory to categories by the part of the learner that allocates it, wrapped during a rehearsal.

FSDP gathers, scatters ─> gathers, then gradients | forward, and its repetition ─> activations
the loss at the head ─> head | the optimizer ─> moments in its first step | the rest ─> temporary
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.utils import checkpoint as torch_checkpoint

from rocstar.kernels import linear_loss
from rocstar.train.learner import learner as learner_module
from rocstar.train.learner.policy_model import PolicyModel
from rocstar.train.rehearsal.memory_tracker import Category, MemoryTracker

Wrapper = Callable[..., Any]


@contextmanager
def scopes(tracker: MemoryTracker) -> Iterator[None]:
    """Run the block with the learner's memory assigned to categories."""

    def within(category: Category, function: Wrapper) -> Wrapper:
        @functools.wraps(function)
        def scoped(*args: Any, **kwargs: Any) -> Any:
            with tracker.scope(category):
                return function(*args, **kwargs)

        return scoped

    def reduced(group: Any, *args: Any, **kwargs: Any) -> Any:
        with tracker.scope(Category.gathers):
            result = post_backward(group, *args, **kwargs)
        shards = [param.sharded_param.grad for param in group.fsdp_params]
        tracker.file([local(grad) for grad in shards if grad is not None], Category.gradients)
        return result

    class Repeated(torch_checkpoint._recomputation_hook):
        """A layer's forward in backward, for activations that were not kept."""

        def __enter__(self) -> Any:
            self._scope = tracker.scope(Category.activations)
            self._scope.__enter__()
            return super().__enter__()

        def __exit__(self, *error: Any) -> None:
            super().__exit__(*error)
            self._scope.__exit__(None, None, None)

    post_backward = FSDPParamGroup.post_backward
    patched: list[tuple[Any, str, Any]] = [
        (FSDPParamGroup, "unshard", within(Category.gathers, FSDPParamGroup.unshard)),
        (FSDPParamGroup, "wait_for_unshard", within(Category.gathers, FSDPParamGroup.wait_for_unshard)),
        (FSDPParamGroup, "post_backward", reduced),
        (PolicyModel, "__call__", within(Category.activations, PolicyModel.__call__)),
        (torch.autograd, "backward", within(Category.temporary, torch.autograd.backward)),
        (torch_checkpoint, "_recomputation_hook", Repeated),
        (linear_loss._LinearLoss, "backward", staticmethod(within(Category.head, linear_loss._LinearLoss.backward))),
    ]
    for name in ("linear_loss", "linear_logprobs"):
        patched.append((learner_module, name, within(Category.head, getattr(learner_module, name))))
    with ExitStack() as stack:
        for owner, name, new in patched:
            stack.enter_context(mock.patch.object(owner, name, new))
        yield


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor."""
    part: Tensor = getattr(tensor, "_local_tensor", tensor)
    return part


def book_gradients(model: nn.Module, tracker: MemoryTracker) -> None:
    """Without FSDP autograd hands every parameter its gradient: book it when it does."""
    for parameter in model.parameters():
        if parameter.requires_grad and not hasattr(parameter, "_local_tensor"):
            any_parameter: Any = parameter  # torch has no types for its hooks
            any_parameter.register_post_accumulate_grad_hook(
                lambda p: tracker.file([p.grad] if p.grad is not None else [], Category.gradients)
            )

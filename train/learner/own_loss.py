"""The own policy loss of a recipe, "module:function": a function of `PolicyTokens`, checked before a run and in it.

Every rank imports it, and the commands to other ranks hold its name alone.
"""

import math
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import torch
from torch import Tensor

from rocstar.train.algorithm.loss import PolicyLoss, PolicyTokens
from rocstar.train.recipe import own_code
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.rl_config import CONSTANTS

FIELD = "rl.loss"


@dataclass(slots=True)
class OwnLoss(PolicyLoss):
    """The function that `spec` names. It always gets whole sequences.

    If it raises, or does not return a tensor of one loss per token with a gradient, `problem` says why.
    """

    reads_sequences: ClassVar[bool] = True
    spec: str
    problem: str = ""

    def __call__(self, tokens: PolicyTokens) -> Tensor:
        if not len(tokens.logprobs_T):  # a rank without tokens
            return tokens.logprobs_T
        try:
            return _loss(self.spec, tokens)[0]
        except (Exception, SystemExit) as error:  # the user's code; to raise here would leave the other ranks waiting
            self.problem = f"{FIELD} = {self.spec!r} failed: {own_code.described(error)}; correct it"
            return tokens.logprobs_T * math.nan


def check_loss(name: str) -> None:
    """Call the own loss of a recipe with six tokens in two sequences, with advantages of both signs.

    Raises:
        ConfigError: it cannot be imported or called, or its losses or their gradient are not finite, not one per
            token, or without any effect.
    """
    if name in CONSTANTS:
        return
    own_code.load_plain(name, field=FIELD, takes=("PolicyTokens",))
    rollout_T = -torch.linspace(0.2, 3.0, 6)
    tokens = PolicyTokens(
        logprobs_T=(rollout_T + 0.1).requires_grad_(),
        old_logprobs_T=rollout_T + 0.05,
        rollout_logprobs_T=rollout_T,
        advantages_T=torch.tensor([1.0, 1.0, 1.0, 1.0, -0.5, -0.5]),
        after_tool_T=torch.tensor([False, False, True, True, False, False]),
        lengths_S=(4, 2),
    )
    try:
        loss_T, slope_T = _loss(name, tokens)
    except (Exception, SystemExit) as error:  # the user's code
        raise ConfigError(_on_test_tokens(name, own_code.described(error))) from error
    for what, values_T in (("losses", loss_T.detach()), ("gradient in logprobs_T", slope_T)):
        if not values_T.isfinite().all():
            raise ConfigError(_on_test_tokens(name, f"not finite: {what} {values_T.tolist()}"))
    if not slope_T.any():
        raise ConfigError(_on_test_tokens(name, "the gradient in logprobs_T is 0 for every token"))


def _on_test_tokens(name: str, problem: str) -> str:
    return (
        f"{FIELD} = {name!r} with six tokens as a test: {problem}; it gets PolicyTokens and returns the loss of each "
        "token, see rocstar/train/algorithm/loss.py"
    )


def _loss(spec: str, tokens: PolicyTokens) -> tuple[Tensor, Tensor]:
    """Return the function's losses and their gradient. It gets copies, which it may change.

    Raises an error of its own; TypeError or ValueError: not a tensor, or of another shape; RuntimeError: no gradient.
    """
    columns = {one.name: getattr(tokens, one.name) for one in fields(tokens)}
    copies = {name: column.clone() for name, column in columns.items() if isinstance(column, Tensor)}
    loss_T = own_code.load(spec, field=FIELD)(replace(tokens, lengths_S=tuple(tokens.lengths_S or ()), **copies))
    if not isinstance(loss_T, Tensor):
        raise TypeError(f"it returns {type(loss_T).__name__}, not a tensor")
    if loss_T.shape != tokens.logprobs_T.shape:
        raise ValueError(f"it returns shape {tuple(loss_T.shape)} for {len(tokens.logprobs_T)} tokens")
    if not loss_T.requires_grad:
        raise ValueError("its losses have no gradient in logprobs_T")
    return loss_T, torch.autograd.grad(loss_T.sum(), tokens.logprobs_T, retain_graph=True)[0]

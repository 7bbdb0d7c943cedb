"""On-policy distillation: each token's advantage is the teacher's log-prob minus the rollout's.

    A_t = log p_teacher(t) - log p_rollout(t)

The policy samples, the teacher scores the same tokens, and no reward is used. With the policy's own log-prob in the
place of the rollout's, E[A_t] is minus the reverse KL of the policy to the teacher at the token, so the policy
gradient lowers that KL token by token, without credit over later ones. Source: prime-rl, orchestrator/algo/opd.py and
`ref_kl_loss_fn`, without its mask and its squared term, which belong to a loss; Agarwal et al., arXiv 2306.13649.

Both models must have one tokenizer. A token that the teacher finds nearly impossible has a large negative advantage;
`rl.grad_clip` bounds the update.
"""

from collections.abc import Sequence

from rocstar.train.algorithm.advantages.sample import Sample, per_group


@per_group
def distill(samples_G: Sequence[Sample]) -> list[tuple[float, ...]]:
    """Return the teacher's gap at each loss token. ValueError for a sample that the teacher did not score."""
    if unscored := [len(sample.gaps_T) for sample in samples_G if len(sample.gaps_T) != sample.num_tokens]:
        raise ValueError(f"the teacher scored {unscored[0]} loss tokens of a sample; the recipe needs teacher.url")
    return [sample.gaps_T for sample in samples_G]

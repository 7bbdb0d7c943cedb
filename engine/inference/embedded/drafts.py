"""Draft tokens from the texts of one task: what followed the same tokens before, in a sibling or the row itself.

    ended and running rows -> followers of each n-gram -> a chain of drafts -> one forward over the chain
    -> sample each position with its own noise -> keep the tokens up to the first that is not its draft

A draft changes no token: a position is sampled as without drafts, and a draft only decides whether the logits
behind it are of use. How many drafts a forward takes follows from how often followers were right, and from the
modelled time of a forward, never from a clock.

Sources: prompt lookup; SuffixDecoding (arXiv 2411.04975), with n-grams of one length in place of suffixes. The
number of drafts maximises tokens per time by Dinkelbach's method (1967).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from rocstar.engine.inference.embedded.rows import Row

ORDER = 3
"""Tokens of an n-gram."""
AGREED = 8
"""Classes of followers: how often in a row an n-gram had the same one, at most AGREED - 1."""
MOST_FOLLOWERS = 1 << 19
"""N-grams of all tasks together, about 100 bytes each; beyond them the least recently used task is dropped."""
MEMORY = 1024
"""Observations of a class after which its older ones count half."""
MARGIN, MOST_SHARE = 1.15, 0.8
"""A draft must be worth 1.15 times its modelled time. Where a token adds more than 0.8 of the time of an average
one, no drafts are looked for: there is too little to gain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardTime:
    """Microseconds of a forward and its sampling on one core, fitted to models of 0.3 to 21 million weights.

    Only ratios count: another speed, or more threads, changes both alike.
    """

    fixed: float
    token: float
    position: float
    """Of each token for each position that it attends to."""

    @staticmethod
    def of(model: PreTrainedModel) -> ForwardTime:
        config = model.config
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        weights = sum(parameter.numel() for parameter in model.parameters())
        heads = config.num_hidden_layers * config.num_attention_heads
        return ForwardTime(fixed=200 + 1e-3 * weights, token=5 + 3.5e-5 * weights, position=5e-4 * heads * size)


class Drafts:
    """The followers of each task, and how often they are right."""

    def __init__(self, most: int, time: ForwardTime) -> None:
        """most: drafts of a row in a forward."""
        self._most, self._time = most, time
        self._tasks: OrderedDict[tuple[int, ...], dict[int, int]] = OrderedDict()
        """By prompt: hash of an n-gram -> its last follower * AGREED + class."""
        self._num_followers = 0
        self._right, self._seen = [1.0] * AGREED, [2.0] * AGREED
        """Of each class, over the tokens of all texts."""

    def propose(self, rows: Sequence[Row], capacity: int) -> list[list[int]]:
        """Return each row's drafts. capacity: tokens of a slot.

        The rows' texts so far are learned first.
        """
        none: list[list[int]] = [[] for _ in rows]
        context = sum(len(row.ids) for row in rows) / len(rows)
        token_time = self._time.token + self._time.position * context
        plain_time = self._time.fixed + token_time * len(rows)
        least = MARGIN * token_time * len(rows) / plain_time
        if least > MOST_SHARE:
            return none
        found = [self._chain(row, least, capacity) for row in rows]
        odds = [odd for _, chain in found for odd in chain]
        if not odds:
            return none
        rate = (len(rows) + sum(odds)) / (plain_time + token_time * len(odds))
        least = MARGIN * token_time * rate
        return [draft[: sum(odd >= least for odd in chain)] for draft, chain in found]

    def learn(self, row: Row) -> None:
        """Add the row's tokens since the last call to its task's texts."""
        followers = row.followers
        if followers is None:
            followers = row.followers = self._task(row)
        before, ids, right, seen = len(followers), row.ids, self._right, self._seen
        for at in range(max(row.learned, ORDER), len(ids)):
            key, token = hash(tuple(ids[at - ORDER : at])), ids[at]
            known = followers.get(key)
            if known is None:
                followers[key] = token * AGREED
                continue
            follower, agreed = divmod(known, AGREED)
            seen[agreed] += 1
            if follower != token:
                followers[key] = token * AGREED
            else:
                right[agreed] += 1
                if agreed < AGREED - 1:
                    followers[key] = known + 1
        row.learned = len(ids)
        self._num_followers += len(followers) - before
        for agreed in range(AGREED):
            if seen[agreed] > MEMORY:
                seen[agreed] /= 2
                right[agreed] /= 2

    def _task(self, row: Row) -> dict[int, int]:
        """The followers of the row's task; those of the least recently used task make room."""
        followers = self._tasks.setdefault(row.prefix, {})
        self._tasks.move_to_end(row.prefix)
        if followers:  # a sibling's prompt is there
            row.learned = len(row.prefix)
        while self._num_followers > MOST_FOLLOWERS and len(self._tasks) > 1:
            self._num_followers -= len(self._tasks.popitem(last=False)[1])
        return followers

    def _chain(self, row: Row, least: float, capacity: int) -> tuple[list[int], list[float]]:
        """Drafts of a row, and the probability that all up to each of them are right: at least `least`."""
        self.learn(row)
        request, followers = row.request, row.followers
        assert request is not None and followers is not None
        most = min(self._most, request.max_new_tokens - len(request.new_ids) - 1, capacity - len(row.ids))
        draft: list[int] = []
        odds: list[float] = []
        odd, context = 1.0, row.ids[-ORDER:]
        while len(draft) < most and (known := followers.get(hash(tuple(context)))) is not None:
            token, agreed = divmod(known, AGREED)
            odd *= self._right[agreed] / self._seen[agreed]
            if odd < least:
                break
            draft.append(token)
            odds.append(odd)
            context = [*context[1:], token]
            if token in request.stop_ids:
                break
        return draft, odds

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

ORDER, TOKEN_BITS = 3, 20
"""Tokens of an n-gram, and the bits of each in its key: a larger vocabulary only makes worse drafts."""
KEY = (1 << ORDER * TOKEN_BITS) - 1
CLASS_BITS = 3
"""A follower's class is how often in succession its n-gram had it, at most 7."""
MOST_AGREED = (1 << CLASS_BITS) - 1
MOST_FOLLOWERS = 1 << 19
"""N-grams of all tasks together, about 100 bytes each, when a task is added."""
MEMORY = 1024
"""Observations of a class after which all of them count half."""
MARGIN, MOST_SHARE = 1.15, 0.8
"""A draft must be worth 1.15 times its modelled time. Where a token adds more than 0.8 of the time of an average
one, no drafts are looked for: there is too little to gain."""
SEARCH, PAUSE = 4.0, 15
"""Microseconds of the search for drafts per row, and forwards without it where it costs more than it gains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardTime:
    """Microseconds of a forward and its sampling on one core, fitted to models of 0.3 to 21 million weights.

    Only ratios count: another speed, or more threads, changes both alike.
    """

    fixed: float
    token: float
    position: float
    """Time of each token for each position that it attends to."""

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
        """By prompt: key of an n-gram -> its last follower and the class of it."""
        self._right, self._seen = [1.0] * (MOST_AGREED + 1), [2.0] * (MOST_AGREED + 1)
        """Counts of each class, over the tokens of all texts."""
        self._gain = 0.0
        """Microseconds per forward that drafts save beyond their search: a decayed mean."""
        self._pause = 0

    def propose(self, rows: Sequence[Row], capacity: int) -> list[list[int]]:
        """Return each row's drafts, or nothing if no row has any; learn the rows' texts before.

        capacity: tokens of a slot.
        """
        count = len(rows)
        token_time = self._time.token + self._time.position * sum(len(row.ids) for row in rows) / count
        plain_time = self._time.fixed + token_time * count
        least = MARGIN * token_time * count / plain_time
        self._pause -= 1
        if least > MOST_SHARE or self._pause >= 0:
            return []
        found = [self._chain(row, least, capacity) for row in rows]
        odds = [odd for _, chain in found for odd in chain]
        least = MARGIN * token_time * (count + sum(odds)) / (plain_time + token_time * len(odds))
        drafts = [draft[: sum(odd >= least for odd in chain)] for draft, chain in found]
        odds = [odd for odd in odds if odd >= least]
        saved = plain_time * sum(odds) / count - token_time * len(odds)
        self._gain += (saved - SEARCH * count - self._gain) / 16
        if self._gain < 0:
            self._pause = PAUSE
        return drafts if any(drafts) else []

    def learn(self, row: Row) -> None:
        """Add the row's tokens since the last call to its task's texts."""
        followers = row.followers
        if followers is None:
            followers = row.followers = self._task(row)
        right, seen = self._right, self._seen
        start, row.learned = max(row.learned, ORDER), len(row.ids)
        key = _key_of(row.ids[start - ORDER : start])
        for token in row.ids[start:]:
            known = followers.get(key)
            if known is None or known >> CLASS_BITS != token:
                followers[key] = token << CLASS_BITS
            elif known & MOST_AGREED < MOST_AGREED:
                followers[key] = known + 1
            if known is not None:
                agreed = known & MOST_AGREED
                seen[agreed] += 1
                right[agreed] += known >> CLASS_BITS == token
                if seen[agreed] > MEMORY:
                    seen[agreed] /= 2
                    right[agreed] /= 2
            key = (key << TOKEN_BITS | token) & KEY

    def _task(self, row: Row) -> dict[int, int]:
        """Return the followers of the row's task; those of the least recently used tasks make room for a new one."""
        if row.prefix not in self._tasks:
            while sum(map(len, self._tasks.values())) > MOST_FOLLOWERS:
                self._tasks.popitem(last=False)
            self._tasks[row.prefix] = {}
        else:
            self._tasks.move_to_end(row.prefix)
            row.learned = len(row.prefix)  # a sibling's prompt is there
        return self._tasks[row.prefix]

    def _chain(self, row: Row, least: float, capacity: int) -> tuple[list[int], list[float]]:
        """Return drafts of a row, and the probability that all up to each of them are right: at least `least`."""
        self.learn(row)
        request, followers, ids = row.request, row.followers, row.ids
        assert request is not None and followers is not None
        draft: list[int] = []
        odds: list[float] = []
        odd, key = 1.0, _key_of(ids[-ORDER:])
        while (known := followers.get(key)) is not None:
            token, agreed = known >> CLASS_BITS, known & MOST_AGREED
            odd *= self._right[agreed] / self._seen[agreed]
            if odd < least:
                break
            draft.append(token)
            odds.append(odd)
            if token in request.stop_ids or len(draft) == self._most:
                break
            key = (key << TOKEN_BITS | token) & KEY
        room = min(request.max_new_tokens - len(request.new_ids) - 1, capacity - len(ids))
        return draft[:room], odds[:room]


def _key_of(ids: Sequence[int]) -> int:
    key = 0
    for token in ids:
        key = key << TOKEN_BITS | token
    return key & KEY

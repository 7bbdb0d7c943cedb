"""BFCL v3 as a built-in set: function calls in 17 categories, four of them with several user messages."""

from __future__ import annotations

from rocstar.train.evaluation.benchmarks.benchmark import Asking, Benchmark, Defaults, Published
from rocstar.train.evaluation.benchmarks.bfcl.entries import INSTALL, MAX_TURNS, SIZES, load
from rocstar.train.evaluation.benchmarks.bfcl.gold import gold, near_miss
from rocstar.train.evaluation.benchmarks.bfcl.judge import FunctionJudge, SimulatedUser, measures
from rocstar.train.evaluation.benchmarks.bfcl.score import overall

BFCL_V3 = Benchmark(
    name="bfcl_v3",
    title="Berkeley Function-Calling Leaderboard v3",
    num_questions=sum(SIZES.values()),
    licence="Apache-2.0",
    source=Published(
        repository="",
        revision="58f57e91^ of ShishirPatil/gorilla, whose files are those of bfcl-eval 2025.8.6.2",
        file=f"the folder that `{INSTALL}` makes",
        digest="5fa6e72a1a6c506416f1a7c293dc29977cb40b55d1f4935554064fd542e83276",
    ),
    asking=Asking.functions,
    load=load,
    judge=FunctionJudge,
    gold=gold,
    near_miss=near_miss,
    measures=measures,
    overall=overall,
    counterpart=SimulatedUser,
    defaults=Defaults(samples=1, temperature=0.0, max_turns=MAX_TURNS),
)

"""Fuzzes the service's request decoding: bytes in, typed calls or `RequestError` out, nothing else.

    python tests/fuzz/fuzz_decode.py --seconds 600          # a seeded mutator of its own
    python tests/fuzz/fuzz_decode.py --atheris OPTIONS      # guided by coverage, where atheris is installed

A finding is written to a file beside the working directory and its seed is printed.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rocstar.sandbox.http.errors import RequestError
from rocstar.sandbox.service.app import error_response
from rocstar.sandbox.service.dialects.code_judge import JudgeOptions, decode_submission, decode_submissions
from rocstar.sandbox.service.dialects.native import decode_batch, decode_cell, decode_run, decode_session
from rocstar.sandbox.service.dialects.sandbox_fusion import decode_run_code, decode_run_jupyter
from rocstar.sandbox.service.validation import ServiceLimits

RULES = ServiceLimits(flavours=("stdlib", "numeric", "verifier"))
LIMITS = JudgeOptions().limits
TARGETS: list[tuple[str, Callable[[bytes], Any]]] = [
    ("/v1/run", lambda body: decode_run(body, RULES)),
    ("/v1/batch", lambda body: decode_batch(body, RULES)),
    ("/v1/sessions", lambda body: decode_session(body, RULES)),
    ("/v1/sessions/x/run", lambda body: decode_cell(body, RULES)),
    ("/run", lambda body: decode_submission(body, RULES, LIMITS)),
    ("/run/batch", lambda body: decode_submissions(body, RULES, LIMITS)),
    ("/run_code", lambda body: decode_run_code(body, RULES)),
    ("/run_jupyter", lambda body: decode_run_jupyter(body, RULES)),
]
LIMIT_FIELDS = {"wall_s": 4.5, "cpu_s": 5, "memory_bytes": 1 << 30, "output_bytes": 0, "file_bytes": 1}
SEEDS: list[Any] = [
    {
        "code": "import numpy as np\nprint(1)",
        "stdin": "é",
        "limits": LIMIT_FIELDS,
        "flavour": "auto",
        "seed": 1,
    },
    {"requests": [{"code": "a"}, {"code": "b", "stdin": "", "seed": None}], "stream": True, "deadline_s": 5},
    {"flavour": "numeric", "limits": LIMIT_FIELDS, "seed": 2**64 - 1},
    {"code": "x", "wall_s": 0.5, "deadline_s": 1e300},
    {
        "type": "python",
        "solution": 'b64decode("aW1wb3J0IG51bXB5")',
        "input": "",
        "expected_output": "1",
        "options": {"a": "b"},
    },
    {
        "sub_id": "s",
        "type": "batch",
        "submissions": [{"type": "cpp", "solution": "int main(){}"}, {"type": "math", "solution": ""}],
    },
    {
        "code": "1",
        "language": "python",
        "run_timeout": 10,
        "memory_limit_MB": -1,
        "files": {"a": "YQ=="},
        "fetch_files": ["a"],
    },
    {
        "cells": ["a = 1", "a"],
        "cell_timeout": 0,
        "total_timeout": 45,
        "kernel": "python3",
        "files": {},
        "fetch_files": [],
    },
]
ODD_VALUES = (
    *(
        b"null",
        b"true",
        b"1e999",
        b"-1",
        b"NaN",
        b"[]",
        b"{}",
        b'""',
        b'"\\ud800"',
        b'"\\u0000"',
        b"1" * 4400,
    ),
    *(b'{"code":1}', b"[[]]", b"1.5", b'"x"', b"[" * 3000, b"18446744073709551616", b"\xff", b"0.0"),
)


def check(index: int, body: bytes) -> None:
    """Raises for any ending but a value, or a refusal whose answer is JSON, names a field and is a 4xx."""
    path, decode = TARGETS[index % len(TARGETS)]
    try:
        decode(body)
    except RequestError as caught:
        refusal = caught
    else:
        return
    answer = error_response(path, refusal)
    assert 400 <= answer.status < 500 and refusal.field, f"{answer.status} naming {refusal.field!r}"
    assert isinstance(answer.body, bytes)
    json.loads(answer.body)


def mutate(rng: random.Random, body: bytearray) -> None:
    """One small change: a byte, a span, a value in the place of another, a span of another seed."""
    at = rng.randrange(len(body) + 1)
    kind = rng.randrange(6)
    if kind == 0 and at < len(body):
        body[at] = rng.randrange(256)
    elif kind == 1:
        del body[at : at + rng.randrange(1, 9)]
    elif kind == 2:
        body[at:at] = rng.choice(ODD_VALUES)
    elif kind == 3:
        other = encoded(rng)
        start = rng.randrange(len(other))
        body[at:at] = other[start : start + rng.randrange(1, 40)]
    elif kind == 4:
        colon = body.find(b":", at)
        end = min(
            (place for place in (body.find(b",", colon), body.find(b"}", colon)) if place > 0), default=-1
        )
        if 0 <= colon < end:
            body[colon + 1 : end] = rng.choice(ODD_VALUES)
    else:
        span = body[at : at + rng.randrange(1, 60)]
        body[at:at] = span * rng.randrange(1, 30)


def encoded(rng: random.Random) -> bytearray:
    return bytearray(
        json.dumps(rng.choice(SEEDS), ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    )


def fuzz(seconds: float, seed: int) -> int:
    """Returns the number of bodies tried."""
    end = time.monotonic() + seconds
    tried = 0
    while time.monotonic() < end:
        rng = random.Random(seed + tried)
        body = encoded(rng)
        for _ in range(rng.randrange(8)):
            mutate(rng, body)
        for index in range(len(TARGETS)):
            try:
                check(index, bytes(body))
            except BaseException:
                Path(f"fuzz_decode-{seed + tried}.bin").write_bytes(body)
                print(f"finding: seed {seed + tried}, target {TARGETS[index][0]}", file=sys.stderr)
                raise
        tried += 1
    return tried


def main() -> None:
    if "--atheris" in sys.argv:
        import atheris

        sys.argv.remove("--atheris")
        atheris.Setup(sys.argv, lambda data: check(data[0] if data else 0, data[1:]))
        atheris.Fuzz()
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    tried = fuzz(options.seconds, options.seed)
    print(f"{tried} bodies through {len(TARGETS)} decoders in {options.seconds:g} s, no finding")


if __name__ == "__main__":
    main()

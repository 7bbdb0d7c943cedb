"""The facts that a running server reports, and the check that its answers can be used for training."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from rocstar.engine.inference.base import InferenceError
from rocstar.engine.inference.sglang.api import Api
from rocstar.engine.inference.sglang.requests import generate_body

BEYOND_INPUT = 4
"""How much longer than its longest input a request may become (docs/reference/sglang.md)."""
GAP_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """max_length: of ids and new tokens together, what context and KV pool hold: the server would clip
    silently. is_seeded: it takes the seed of a request's noise."""

    tp_size: int = 1
    max_length: int = 0
    is_seeded: bool = False


async def examine(api: Api) -> ServerFacts:
    """InferenceError(unfit) names what to change."""
    info = await api.get("/server_info")
    if "max_req_input_len" not in info or "tp_size" not in info:
        raise _unfit(f"{api.url} is no SGLang server of 0.5", "see docs/reference/sglang.md for the version")
    if info.get("preferred_sampling_params"):
        raise _unfit("it has sampling parameters of its own", "leave out --preferred-sampling-params")
    await _check_logprobs(api)
    return ServerFacts(
        tp_size=int(info["tp_size"]),
        max_length=int(info["max_req_input_len"]) + BEYOND_INPUT,
        is_seeded=bool(info.get("enable_deterministic_inference")),
    )


async def _check_logprobs(api: Api) -> None:
    """Check that the gap between the two likeliest tokens at T = 0.5 is twice that at T = 1 (contract 1)."""
    gaps = []
    for temperature in (1.0, 0.5):
        body = generate_body([1], 1, frozenset(), temperature, "rocstar-check")
        try:
            async with asyncio.timeout(api.timeout_s):
                reply = await api.generate(body | {"top_logprobs_num": 2})
        except TimeoutError:
            detail = f"{api.url}: no token within {api.timeout_s} s"
            raise InferenceError("replica_hung", detail, retryable=True) from None
        (first, second) = reply["meta_info"]["output_top_logprobs"][0]
        gaps.append(first[0] - second[0])
    if abs(gaps[1] - 2 * gaps[0]) > GAP_TOLERANCE * max(1.0, gaps[1]):
        raise _unfit(
            "its log-probs are not log_softmax(logits / T)", "unset SGLANG_RETURN_ORIGINAL_LOGPROB for it"
        )


async def read_checksums(api: Api, tp_size: int) -> dict[str, str]:
    """The checksum of every parameter: equal over data-parallel ranks, by rank if tensor-parallel."""
    reply = await api.post("/weights_checker", {"action": "checksum"})
    ranks = reply["ranks"]
    if tp_size == 1 and all(rank["checksums"] == ranks[0]["checksums"] for rank in ranks):
        found: dict[str, str] = ranks[0]["checksums"]
        return found
    return {f"{k}/{name}": value for k, rank in enumerate(ranks) for name, value in rank["checksums"].items()}


def _unfit(why: str, fix: str) -> InferenceError:
    return InferenceError("unfit", f"this server cannot be used: {why}; {fix}", retryable=False)

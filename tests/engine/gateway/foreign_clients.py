"""Foreign agents and gateways as test clients, and a server that records their requests.

    python3.12 -m venv VENV && VENV/bin/pip install anthropic==2.14.0 openai-agents==0.24.0 \
        smolagents[openai]==1.26.0 mini-swe-agent==2.4.6 agentlightning==1.0.2 rllm-model-gateway==0.1.0
    (cd NPM && npm install @anthropic-ai/claude-code@2.1.197 @openai/codex@0.171.0 @qwen-code/qwen-code@0.15.10 \
        @mariozechner/pi-coding-agent@0.73.1 && node node_modules/@anthropic-ai/claude-code/install.cjs)
    python -m tests.engine.gateway.foreign_clients --venv VENV --npm NPM [--only NAME] [--gateway]

The requests go to a server without a model, and the first two of each client are written to `recordings/`. With
--gateway the clients run in sessions of the real gateway, over a scripted policy.
"""

import argparse
import asyncio
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from rocstar.engine.chat.chat import ChatFormat, load_template
from rocstar.engine.gateway.dialects.fields import Fields
from rocstar.engine.gateway.endpoint import COUNT_TOKENS, DIALECTS, open_gateway
from rocstar.engine.gateway.messages import Finish, FunctionCall, Message, Request, SampledTurn
from rocstar.engine.gateway.programs import AgentClient
from rocstar.engine.gateway.session import AgentSession, Sessions
from rocstar.engine.inference.base import Generation
from rocstar.engine.types import TrajectoryKey
from rocstar.sandbox.http.errors import RequestError
from tests.engine.gateway.fuzzed_clients import LoggedPolicy, check_columns, make_agent
from tests.fakes.scripted_policy import ByteTokenizer
from tests.patience import PATIENCE_S

HERE = Path(__file__).resolve().parent
RECORDINGS = HERE / "recordings"
MODEL = "rocstar-raw"
DEADLINE_S = PATIENCE_S
MAX_OUTPUT = 64 << 10
"""Characters of a client's output that are kept."""
MAX_CHARS = 120
"""Characters of a text in a recording."""


ADD = ("add", {"a": 2, "b": 3})
FIVE = "The sum is 5."
THOUGHT = "Let me see."


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A foreign agent.

    Attributes:
        command: the command line, of the folders of the Python environment and of npm, and the work folder.
        script: what the policy does in the requests that offer functions: calls, then the final text.
        files: of the work folder, of the base URL without /v1.
        env: more variables, of the base URL without /v1.
    """

    command: Callable[[Path, Path, Path], Sequence[str | Path]]
    script: Sequence[tuple[str, Mapping[str, Any]] | str]
    files: Callable[[str], Mapping[str, str]] = lambda url: {}
    env: Mapping[str, str] = field(default_factory=dict)


def _python(program: str, *script: tuple[str, Mapping[str, Any]] | str, **names: bool) -> Client:
    """Return an agent whose program is a file of `agents`, behind assignments of the names."""
    source = (HERE / "agents" / f"{program}.txt").read_text(encoding="utf-8")
    head = "".join(f"{name} = {value}\n" for name, value in names.items())
    return Client(
        command=lambda venv, npm, work: [venv / "bin/python", "agent.py"],
        script=script or (ADD, FIVE),
        files=lambda url: {"agent.py": head + source},
    )


def _pi_files(url: str) -> Mapping[str, str]:
    model = {"id": MODEL, "reasoning": False, "input": ["text"], "contextWindow": 32000, "maxTokens": 512}
    provider = {"baseUrl": f"{url}/v1", "api": "openai-completions", "apiKey": "OPENAI_API_KEY", "models": [model]}
    return {".pi/agent/models.json": json.dumps({"providers": {"rocstar": provider}})}


def _codex_files(url: str) -> Mapping[str, str]:
    return {
        ".codex/config.toml": f"""
model = "{MODEL}"
model_provider = "rocstar"
[model_providers.rocstar]
name = "rocstar"
base_url = "{url}/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
"""
    }


ECHO = "echo 5"
GATEWAYS = {
    "agent-lightning": {"RLLM": False, "STREAMED": False},  # it refuses streams
    "rllm": {"RLLM": True, "STREAMED": False},
    "rllm-streamed": {"RLLM": True, "STREAMED": True},
}
"""Gateways of other trainers with an OpenAI client. The last line of their output is what the gateway stored: the
prompt's ids, the sampled ids and the log-probs of each request."""
CLIENTS: Mapping[str, Client] = {
    "anthropic": _python("anthropic_loop", STREAMED=False),
    "anthropic-streamed": _python("anthropic_loop", STREAMED=True),
    "openai-agents-chat": _python("openai_agents", RESPONSES=False, STREAMED=False),
    "openai-agents-chat-streamed": _python("openai_agents", RESPONSES=False, STREAMED=True),
    "openai-agents-responses": _python("openai_agents", RESPONSES=True, STREAMED=False),
    "openai-agents-responses-streamed": _python("openai_agents", RESPONSES=True, STREAMED=True),
    "smolagents": _python("smolagents", ADD, ("final_answer", {"answer": "5"})),
    "mini-swe-agent": Client(
        command=lambda venv, npm, work: [
            venv / "bin/mini", "-y", "--exit-immediately", "-m", f"openai/{MODEL}", "-t", "Print 5.",
            "-o", work / "out.json",
        ],
        script=[("bash", {"command": ECHO}), ("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"})],
        env={"MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_CONFIGURED": "true", "MSWEA_SILENT_STARTUP": "1"},
    ),
    "pi": Client(
        command=lambda venv, npm, work: [
            npm / "node_modules/.bin/pi", "-p", "--provider", "rocstar", "--model", MODEL, "Print 5.",
        ],
        script=[("bash", {"command": ECHO}), FIVE],
        files=_pi_files,
    ),
    "claude-code": Client(
        command=lambda venv, npm, work: [
            npm / "node_modules/.bin/claude", "-p", "Print 5.", "--tools", "Bash", "--allowedTools", "Bash",
            "--system-prompt", "You run commands.",
        ],
        script=[("Bash", {"command": ECHO, "description": "Print 5"}), FIVE],
        env={"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"},
    ),
    "codex": Client(
        command=lambda venv, npm, work: [
            npm / "node_modules/.bin/codex", "exec", "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox", "Print 5.",
        ],
        script=[("exec_command", {"cmd": ECHO}), FIVE],
        files=_codex_files,
    ),
    **{name: _python("gateway", **names) for name, names in GATEWAYS.items()},
    "qwen-code": Client(
        command=lambda venv, npm, work: [
            npm / "node_modules/.bin/qwen", "-y", "--auth-type", "openai", "-p", "Print 5.",
        ],
        script=[("run_shell_command", {"command": ECHO, "description": "Print 5", "is_background": False}), FIVE],
    ),
}  # fmt: skip
"""The agents of the table in docs/guide/clients.md."""


def sampled(request: Request, message: Message, *, name: str = "1", finish: Finish | None = None) -> SampledTurn:
    """Return an answer without a model: three tokens of the log-prob -0.5."""
    return SampledTurn(
        id=name,
        request=request,
        message=message,
        finish=finish or ("tool_calls" if message.calls else "stop"),
        prompt_ids=(1, 2, 3),
        generation=Generation(
            ids=(4, 5, 6), logprobs=(-0.5,) * 3, version_spans=((0, 3, 0),), finish="stop", cached_tokens=0
        ),
    )


class RecordingServer:
    """Answers every client by its script. `bodies`: the requests with functions, as (route, body)."""

    def __init__(self, script: Sequence[tuple[str, Mapping[str, Any]] | str]) -> None:
        self.script = script
        self.folder = tempfile.gettempdir()
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.others: list[str] = []
        self.errors: list[str] = []
        self.app = web.Application(client_max_size=1 << 24)
        self.app.router.add_route("*", "/{path:.*}", self._handle)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = re.sub("^/sessions/[^/]+", "", request.path)
        if path not in DIALECTS or path == COUNT_TOKENS:
            self.others.append(f"{request.method} {request.path}")
            return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}], "input_tokens": 3})
        dialect, body = DIALECTS[path], await request.read()
        try:
            given = dialect.read(Fields.of_body(body))
        except RequestError as error:
            self.errors.append(str(error))
            return web.json_response(dialect.error(error), status=error.status)
        step: tuple[str, Mapping[str, Any]] | str = "ok"
        if given.functions:
            step = self.script[min(len(self.bodies), len(self.script) - 1)]
            self.bodies.append((path, _shortened(json.loads(body), self.folder)))
        name = str(len(self.bodies))
        if isinstance(step, str):
            message = Message(role="assistant", text=step, reasoning=THOUGHT)
        else:
            call = FunctionCall(id=f"call_{name}", name=step[0], arguments=json.dumps(step[1]))
            message = Message(role="assistant", reasoning=THOUGHT, calls=(call,))
        sample = sampled(given, message, name=name)
        if not given.is_streamed:
            return web.json_response(dialect.write(sample))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(dialect.PING)
        for event in dialect.stream(sample):
            await response.write(event)
        await response.write_eof()
        return response


async def run_client(name: str, url: str, key: str, venv: Path, npm: Path) -> tuple[int, str]:
    """Run a client against a server. Return its status and the end of its output."""
    client = CLIENTS[name]
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for path, text in client.files(url).items():
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            (work / path).write_text(text)
        env = {
            "PATH": os.environ["PATH"], "HOME": folder, "TMPDIR": folder, "NO_COLOR": "1", "TERM": "dumb",
            **AgentClient(url=url, api_key=key, model=MODEL).environment(),
            **client.env,
        }  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            *map(str, client.command(venv, npm, work)), cwd=folder, env=env, start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            async with asyncio.timeout(DEADLINE_S):
                output, _ = await process.communicate()
        except TimeoutError:
            os.killpg(process.pid, 9)
            return await process.wait(), "the deadline passed"
        return process.returncode or 0, output.decode(errors="replace")[-MAX_OUTPUT:]


async def record(name: str, venv: Path, npm: Path) -> tuple[int, str, RecordingServer]:
    """Run a client against a recording server."""
    server = RecordingServer(CLIENTS[name].script)
    runner = web.AppRunner(server.app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        status, output = await run_client(name, f"http://127.0.0.1:{runner.addresses[0][1]}", "key", venv, npm)
    finally:
        await runner.cleanup()
    return status, output, server


def written_turns(name: str) -> Iterator[str]:
    """The turns of a client's script as a policy writes them."""
    for step in CLIENTS[name].script:
        if isinstance(step, str):
            yield step
        else:
            yield f"<tool_call>\n{json.dumps({'name': step[0], 'arguments': step[1]})}\n</tool_call>"


async def run_in_gateway(name: str, venv: Path, npm: Path) -> tuple[int, str, AgentSession, LoggedPolicy]:
    """Run a client in a session of a gateway, over a policy that follows the client's script."""
    chat, turns = ChatFormat(ByteTokenizer(), load_template("rstar2", None), []), written_turns(name)
    policy, sessions = LoggedPolicy(chat, lambda request: f"{THOUGHT}</reason>\n\n{next(turns)}"), Sessions()
    session = AgentSession(make_agent(chat, policy), TrajectoryKey(seed=0, step=0, task_id=name, sibling=0))
    secret = sessions.open(session)
    async with open_gateway(sessions, model=MODEL, max_context=None) as gateway:
        status, output = await run_client(name, gateway.url, secret, venv, npm)
    await sessions.close(secret)
    return status, output, session, policy


def _shortened(value: Any, folder: str) -> Any:
    """Return the JSON value with long texts cut and the work folder renamed."""
    if isinstance(value, str):
        return value.replace(folder, "/work")[:MAX_CHARS]
    if isinstance(value, dict):
        return {name: _shortened(item, folder) for name, item in value.items()}
    return [_shortened(item, folder) for item in value] if isinstance(value, list) else value


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--npm", type=Path, required=True)
    parser.add_argument("--only", default="", help="the beginning of names")
    parser.add_argument("--gateway", action="store_true", help="run in sessions of a gateway, and record nothing")
    options = parser.parse_args()
    for name in CLIENTS:
        if not name.startswith(options.only):
            continue
        if options.gateway:
            status, output, session, policy = await run_in_gateway(name, options.venv, options.npm)
            columns = session.graph.columns()
            found = f"{len(columns.starts)} sequences, {len(policy.log)} samples, {len(columns.ids)} tokens"
            print(f"{name}: exit {status}, {found}, {dict(session.graph.reasons)}, ignored {dict(session.ignored)}")
            print(f"    trained samples: {check_columns(columns, policy)}, output: {output.strip()[-60:]!r}")
            continue
        status, output, server = await record(name, options.venv, options.npm)
        found = f"{len(server.bodies)} requests, errors {server.errors}"
        print(f"{name}: exit {status}, {found}, output: {output.strip()[-60:]!r}")
        lines = [json.dumps({"route": route, "body": body}) for route, body in server.bodies[:2]]
        (RECORDINGS / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    asyncio.run(main())

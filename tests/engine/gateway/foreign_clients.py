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

ANTHROPIC_LOOP = """
import anthropic, json, os
client = anthropic.Anthropic()
tools = [{"name": "add", "description": "Add two numbers.", "input_schema": {"type": "object",
          "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}]
messages = [{"role": "user", "content": "What is 2 + 3? Use the tool."}]
for _ in range(4):
    settings = dict(model=os.environ["ANTHROPIC_MODEL"], max_tokens=256, tools=tools, messages=messages)
    if STREAMED:
        with client.messages.stream(**settings) as stream:
            answer = stream.get_final_message()
    else:
        answer = client.messages.create(**settings)
    messages.append({"role": "assistant", "content": answer.content})
    if answer.stop_reason != "tool_use":
        break
    results = [{"type": "tool_result", "tool_use_id": block.id, "content": str(block.input["a"] + block.input["b"])}
               for block in answer.content if block.type == "tool_use"]
    messages.append({"role": "user", "content": results})
print(answer.content[-1].text)
"""

OPENAI_AGENTS = '''
import asyncio, os
from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI
set_tracing_disabled(True)
@function_tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)
model = (OpenAIResponsesModel if RESPONSES else OpenAIChatCompletionsModel)(os.environ["OPENAI_MODEL"], AsyncOpenAI())
agent = Agent(name="adder", instructions="Use the tool.", tools=[add], model=model)
async def main():
    if STREAMED:
        result = Runner.run_streamed(agent, "What is 2 + 3?")
        async for _ in result.stream_events():
            pass
    else:
        result = await Runner.run(agent, "What is 2 + 3?")
    print(result.final_output)
asyncio.run(main())
'''

SMOLAGENTS = '''
import os
from smolagents import OpenAIServerModel, ToolCallingAgent, tool
@tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b
model = OpenAIServerModel(model_id=os.environ["OPENAI_MODEL"], api_base=os.environ["OPENAI_BASE_URL"],
                          api_key=os.environ["OPENAI_API_KEY"])
print(ToolCallingAgent(tools=[add], model=model, max_steps=4, verbosity_level=0).run("What is 2 + 3?"))
'''

GATEWAY = """
import json, os, socket, threading
import httpx, uvicorn
from openai import OpenAI
ENDPOINT, KEY, MODEL = (os.environ[name] for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"))
if RLLM:
    from rllm_model_gateway import GatewayConfig, create_app
    app = create_app(GatewayConfig(workers=[{"url": ENDPOINT}]))
else:
    from agentlightning.server.app import create_app
    settings = {"model_name": MODEL, "train": {"temperature": 1.0}, "val": {"temperature": 0.0}}
    app = create_app({"key": "", "default_proxy": settings})
listener = socket.create_server(("127.0.0.1", 0))
http = httpx.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=None)
server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
def ask(method, path, body=None):
    return http.request(method, path, json=body).raise_for_status().json()
if RLLM:
    path = f"/sessions/{ask('POST', '/sessions', {})['session_id']}"
    base = f"{path}/v1"
else:
    # it sends no header of its client
    endpoint = ENDPOINT if KEY == "none" else f"{ENDPOINT.removesuffix('/v1')}/sessions/{KEY}/v1"
    ask("POST", "/api/models", [{"model": MODEL, "endpoint": endpoint}])
    rollout = ask("POST", "/api/rollouts", [{"input": {}}])[0]["rollout_id"]
    base = f"/proxy/rollout/{rollout}/attempt/0/mode/train/openai/v1"
client = OpenAI(base_url=str(http.base_url).rstrip("/") + base, api_key=KEY)
parameters = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
tools = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": parameters}}]
messages = [{"role": "user", "content": "What is 2 + 3? Use the tool."}]
for num_requests in range(1, 5):
    settings = dict(model=MODEL, messages=messages, tools=tools)
    if STREAMED:
        with client.chat.completions.stream(**settings) as stream:
            for _ in stream:
                pass
            message = stream.get_final_completion().choices[0].message
    else:
        message = client.chat.completions.create(**settings).choices[0].message
    messages.append(message.to_dict())
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        given = json.loads(call.function.arguments)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": str(given["a"] + given["b"])})
if RLLM:
    names, entries = ("prompt_token_ids", "completion_token_ids", "logprobs"), []
    while len(entries) < num_requests:  # it stores an answer behind its last byte
        entries = ask("GET", f"{path}/traces")
else:
    names = ("prompt_token_ids", "response_token_ids", "response_log_probs")
    entries = [event["data"] for event in ask("GET", f"/api/rollouts/{rollout}/events?format=triplet")]
print(message.content)
print(json.dumps([[entry[name] for name in names] for entry in entries]))
"""

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


def _python(source: str, *script: tuple[str, Mapping[str, Any]] | str, **names: bool) -> Client:
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
    "anthropic": _python(ANTHROPIC_LOOP, STREAMED=False),
    "anthropic-streamed": _python(ANTHROPIC_LOOP, STREAMED=True),
    "openai-agents-chat": _python(OPENAI_AGENTS, RESPONSES=False, STREAMED=False),
    "openai-agents-chat-streamed": _python(OPENAI_AGENTS, RESPONSES=False, STREAMED=True),
    "openai-agents-responses": _python(OPENAI_AGENTS, RESPONSES=True, STREAMED=False),
    "openai-agents-responses-streamed": _python(OPENAI_AGENTS, RESPONSES=True, STREAMED=True),
    "smolagents": _python(SMOLAGENTS, ADD, ("final_answer", {"answer": "5"})),
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
    **{name: _python(GATEWAY, **names) for name, names in GATEWAYS.items()},
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

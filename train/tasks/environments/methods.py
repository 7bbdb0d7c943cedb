"""Classes of TRL's `environment_factory` protocol (trl 1.16, `GRPOTrainer`), unchanged.

    reset(**row) -> text after the question   a public method -> a tool   get_reward() -> the reward

The protocol is read from the class. An instance serves one rollout after another: `reset` must clear its state.
Plain methods run in threads, the calls of an episode one after the other. An exception of a method is the answer
that the policy reads, {'error': ...}; one of `reset` or `get_reward` fails the trajectory.
Beyond the protocol: an attribute `is_over` that is true after a call ends the attempt.

Siblings must begin alike, and classes draw their tasks from the module `random`. Where the class's module imports it,
its state is the episode's during each call, seeded by the task, and such calls run one at a time.
"""

import inspect
import random
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rocstar.engine.rollout.environment import Environment, EnvironmentEpisode
from rocstar.engine.tools.threads import Threads
from rocstar.engine.tools.tool import Tool, ToolContext, ToolError, ToolOutput, check_parameters
from rocstar.engine.types import Task
from rocstar.train.recipe.errors import ConfigError

_RANDOM = threading.Lock()


class MethodsEnvironment(Environment):
    """An environment whose episodes are instances: `probe` and others that `factory` makes.

    Raises:
        ConfigError: the class of `probe` is not of the protocol.
    """

    def __init__(self, probe: object, factory: Callable[[], object]) -> None:
        self._factory, self._idle = factory, [probe]
        self._threads = Threads("environment")
        names = [name for name, _ in inspect.getmembers(type(probe), inspect.isfunction) if not name.startswith("_")]
        if "reset" not in names:
            raise ConfigError("the class defines no method reset")
        self.gives_reward = "get_reward" in names
        self.functions = [_schema(getattr(probe, name)) for name in names if name not in ("reset", "get_reward")]

    async def open(self, task: Task, seed: int) -> EnvironmentEpisode:
        """Begin with `reset` of an idle instance, or of a new one."""
        made = self._idle.pop() if self._idle else await self._threads.call(self._factory)
        episode = MethodsEpisode(instance=made, threads=self._threads, idle=self._idle)
        if random in sys.modules[type(made).__module__].__dict__.values():
            episode.random_state = random.Random(seed).getstate()
        text = await episode.call("reset", task.meta["row"])
        episode.observation = "" if text is None else text_of(text)
        episode.tools = [MethodTool(schema["function"], episode) for schema in self.functions]
        return episode


@dataclass(slots=True, kw_only=True)
class MethodsEpisode(EnvironmentEpisode):
    """The use of one instance by one rollout."""

    instance: Any
    threads: Threads
    idle: list[Any]
    is_busy: bool = False
    """A call has not ended: another rollout must not get the instance."""
    random_state: tuple[Any, ...] | None = None

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Return the method's value, or raise its exception."""
        method, before, self.is_busy = getattr(self.instance, name), self.is_busy, True
        try:
            if inspect.iscoroutinefunction(method):
                result = await method(**arguments)
            else:
                result = await self.threads.call(self._seeded, method, arguments)
        except Exception:  # user code: the caller knows what its errors mean
            self.is_busy = before
            raise
        self.is_busy, self.is_over = before, bool(getattr(self.instance, "is_over", False))
        return result

    def _seeded(self, method: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """Call a plain method with the episode's state of `random`."""
        if self.random_state is None:
            return method(**arguments)
        with _RANDOM:
            outer = random.getstate()
            random.setstate(self.random_state)
            try:
                return method(**arguments)
            finally:
                self.random_state = random.getstate()
                random.setstate(outer)

    async def reward(self) -> float | None:
        has_one = inspect.isfunction(getattr(type(self.instance), "get_reward", None))
        return await self.call("get_reward", {}) if has_one else None

    async def close(self) -> None:
        if not self.is_busy:
            self.idle.append(self.instance)


class MethodTool(Tool):
    """A public method of the instance."""

    parallel = False

    def __init__(self, function: Mapping[str, Any], episode: MethodsEpisode) -> None:
        self.name, self.description = function["name"], function["description"]
        # `nullable` of transformers is no word of JSON schemas: the field's schema is a choice of types.
        fields = function["parameters"]["properties"].items()
        made = {k: {"anyOf": [v, {"type": "null"}]} if v.get("nullable") else v for k, v in fields}
        self.parameters = {**function["parameters"], "properties": made}
        self.shared, self._episode = "environment", episode

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Return the result as text. ToolError for an exception of the method."""
        try:
            return ToolOutput(text_of(await self._episode.call(self.name, arguments)))
        except Exception as error:  # user code: an exception is its answer to the call
            raise ToolError(str({"error": str(error)})) from error


def text_of(value: Any) -> str:
    """Return a result as text: `str` of it, or the texts of a list of content parts."""
    if isinstance(value, list) and value and all(isinstance(part, Mapping) and "type" in part for part in value):
        if other := {part["type"] for part in value} - {"text"}:
            raise ValueError(f"content of type {other.pop()!r} is not supported; return text")
        return "".join(part["text"] for part in value)
    return str(value)


def _schema(method: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the function that a chat template shows. ConfigError for a method without hints or docstring."""
    from transformers.utils import chat_template_utils as hints  # only here: it imports torch

    try:
        schema: Mapping[str, Any] = hints.get_json_schema(method)
    except (hints.DocstringParsingException, hints.TypeHintParsingException) as error:
        raise ConfigError(
            f"the method {method.__name__!r} is shown as a tool, and has no schema: {error}; give each public method "
            "type hints and a docstring with an 'Args:' block, or begin the name with '_'"
        ) from None
    if problem := check_parameters(schema["function"]["parameters"]):
        raise ConfigError(f"the method {method.__name__!r}: {problem}")
    return schema

"""[engine] of a recipe: what rolls out, how many of it, on which GPUs, and how weights get there."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from rocstar.sandbox.command_line import suggest
from rocstar.train.recipe.paths import is_reference
from rocstar.train.recipe.section import Expert, Seconds, Section, Unit

KINDS = ("embedded", "sglang", "openai")
"""Names of train/serving/backend.py, which a test compares."""
OWN = "module:Class"
"""Stands for every kind that is a user's own."""
POLICIES = ("predictive", "static", "round_robin", "thunder")
"""Names of engine/scheduling/policies, which a test compares: importing it here would cost start-up time."""

OWN_ARGS = ("model-path", "model", "host", "port")
"""Arguments of a server that are not the recipe's to give."""


class EngineConfig(Section):
    """The rollout engine and its resources."""

    kind: str = Field(
        "embedded",
        description="'embedded' in this process, 'sglang' for servers that it starts, 'openai' for an "
        "endpoint that runs already (eval and rollout only), or 'module:Class' of your own",
    )
    url: Expert[str] = Field(
        "", description="of an 'openai' endpoint, up to and with /v1; its key comes from ROCSTAR_OPENAI_KEY alone"
    )
    model: Expert[str] = Field("", description="as an 'openai' endpoint names it; '' = model.path")
    replicas: Annotated[int | list[list[int]], Unit("engines")] = Field(
        1,
        description="engines per node, several behind one scheduler; for servers on GPUs a list with the GPU "
        "numbers of each: [[4, 5], [6, 7]]",
    )
    policy: Expert[str] = Field(
        "predictive", description="the scheduler's policy of admission and placement: " + ", ".join(POLICIES)
    )
    args: Expert[dict[str, Any]] = Field(
        {}, description="arguments of sglang.launch_server, or of a 'module:Class', verbatim"
    )
    publish: Expert[Literal["disk", "broadcast"]] = Field(
        "disk", description="how weights reach a server: safetensors in the run directory, or its memory"
    )
    placement: Expert[Literal["split", "restart"]] = Field(
        "split", description="servers beside the learner, or stopped while it works and started from its new weights"
    )
    max_running: Expert[Annotated[int, Unit("rows")]] = Field(
        256, ge=1, description="rows decoded together by an embedded engine"
    )
    drafts: Expert[Annotated[int, Unit("tokens")]] = Field(
        0,
        ge=0,
        description="tokens that a row of an embedded engine on a CPU tries in a forward besides its next one, at "
        "most, from texts of the same prompt; sampled tokens stay the same; 0 = none",
    )
    deterministic: Expert[bool] = Field(
        False,
        description="decode in lockstep with the tools, and add up in one order: on a CPU the same seed and "
        "number of threads give the same bits",
    )
    sandbox_children: Expert[Annotated[int, Unit("processes")]] = Field(
        0, ge=0, description="live children at most; 0 = one and a half times the cores"
    )
    trajectory_timeout_s: Expert[Seconds] = Field(
        600.0, gt=0, description="of a whole trajectory, from its first place in an engine on"
    )

    @property
    def num_replicas(self) -> int:
        return self.replicas if isinstance(self.replicas, int) else len(self.replicas)

    def gpus_of(self, replica: int) -> list[int] | None:
        """Numbers of the GPUs of a server; None where the recipe names none."""
        return None if isinstance(self.replicas, int) else self.replicas[replica]

    @field_validator("kind")
    @classmethod
    def _kind_is_known(cls, kind: str) -> str:
        if kind not in KINDS and not is_reference(kind):
            raise PydanticCustomError("kind", f"not known; {suggest(kind, (*KINDS, OWN))}")
        return kind

    @model_validator(mode="after")
    def _values_are_known(self) -> EngineConfig:
        if self.policy not in POLICIES:
            raise ValueError(f"policy = {self.policy!r} is not known; {suggest(self.policy, POLICIES)}")
        _check_replicas(self.replicas)
        if self.kind in KINDS:
            for name, value in self.args.items():
                plain = name.replace("_", "-").lstrip("-")
                if plain in OWN_ARGS:
                    raise ValueError(f"args.{name} = {value!r}: rocstar sets it itself; leave it out")
                if name.startswith("-") or not plain:
                    raise ValueError(f"args.{name}: names go without dashes in front; write {plain!r}")
                items = value if isinstance(value, list) else [value]
                if not all(isinstance(item, str | int | float | bool) for item in items):
                    raise ValueError(f"args.{name} = {value!r}: a text, a number, true, false or a list of them")
        return self

    @model_validator(mode="after")
    def _options_fit_the_kind(self) -> EngineConfig:
        kind = self.kind if self.kind in KINDS else OWN
        for what, is_given, kinds, fix in self._special():
            if is_given and kind not in kinds:
                raise ValueError(f"{what} is of {fix}")
        if kind == "openai" and not self.url:
            raise ValueError("kind = 'openai' needs url, the endpoint's address up to and with /v1")
        if "@" in self.url.partition("//")[2].partition("/")[0]:
            raise ValueError("url holds a name or a password, which no recipe keeps; give ROCSTAR_OPENAI_KEY")
        if self.placement == "restart" and self.publish == "broadcast":
            raise ValueError(
                "publish = 'broadcast' goes into running servers, and placement = 'restart' stops them; "
                "set publish = 'disk' or placement = 'split'"
            )
        return self

    def _special(self) -> list[tuple[str, bool, tuple[str, ...], str]]:
        """Options of some kinds alone: what, whether it is given, those kinds, whose it is and the fix."""
        servers = "servers only; leave it out, or set kind = 'sglang'"
        endpoint = "an endpoint only; leave it out, or set kind = 'openai'"
        one = (
            "one embedded engine: with several, timing decides what runs where; set it to false, or "
            "kind = 'embedded' and replicas = 1"
        )
        return [
            ("args", bool(self.args), ("sglang", OWN), servers),
            ("publish = 'broadcast'", self.publish == "broadcast", ("sglang", OWN), servers),
            ("placement = 'restart'", self.placement == "restart", ("sglang", OWN), servers),
            ("replicas with GPU numbers", not isinstance(self.replicas, int), ("sglang", OWN), servers),
            ("url", bool(self.url), ("openai",), endpoint),
            ("model", bool(self.model), ("openai",), endpoint),
            ("deterministic = true", self.deterministic, ("embedded", OWN), one),
            ("deterministic = true", self.deterministic and self.num_replicas > 1, (), one),
        ]


def _check_replicas(replicas: Annotated[int | list[list[int]], Unit("engines")]) -> None:
    if isinstance(replicas, int):
        if replicas < 1:
            raise ValueError(f"replicas = {replicas}: there must be at least 1")
        return
    gpus = [gpu for server in replicas for gpu in server]
    if not replicas or not all(replicas):
        raise ValueError(f"replicas = {replicas}: every server needs a GPU; [[0], [1]] is two servers")
    if min(gpus) < 0 or len(set(gpus)) < len(gpus):
        raise ValueError(f"replicas = {replicas}: GPU numbers count from 0, and each is of one server")
    if len({len(server) for server in replicas}) > 1:
        raise ValueError(f"replicas = {replicas}: servers take the same arguments, and so as many GPUs each")

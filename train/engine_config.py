"""[engine] of a recipe: what rolls out, how many of it, on which GPUs, and how weights get there."""

from __future__ import annotations

import difflib
from typing import Any, Literal

from pydantic import Field, model_validator

from rocstar.train.section import Section

POLICIES = (
    "predictive",
    "static",
    "round_robin",
    "least_inflight",
    "sticky",
    "reserve",
    "aimd",
    "thunder",
)
"""Names of engine/scheduling/policies, which a test compares: importing it here would cost start-up time."""

OWN_ARGS = ("model-path", "model", "host", "port")
"""Arguments of a server that are not the recipe's to give."""


class EngineConfig(Section):
    kind: Literal["embedded", "sglang"] = Field(
        "embedded", description="in this process, or SGLang servers that it starts"
    )
    replicas: int | list[list[int]] = Field(
        1,
        description="engines per node, several behind one scheduler; for servers on GPUs a list with the GPU "
        "numbers of each: [[4, 5], [6, 7]]",
    )
    policy: str = Field(
        "predictive", description="what the scheduler admits and where: " + ", ".join(POLICIES)
    )
    args: dict[str, Any] = Field({}, description="arguments of sglang.launch_server, verbatim")
    publish: Literal["disk", "broadcast"] = Field(
        "disk", description="how weights reach a server: safetensors in the run directory, or its memory"
    )
    placement: Literal["split", "restart"] = Field(
        "split",
        description="servers beside the learner, or stopped while it works and started from its new weights",
    )
    max_running: int = Field(256, ge=1, description="rows decoded together by an embedded engine")
    deterministic: bool = Field(
        False,
        description="decode in lockstep with the tools, and add up in one order: on a CPU the same seed and "
        "number of threads give the same bits",
    )
    sandbox_children: int = Field(
        0, ge=0, description="live children at most; 0 = one and a half times the cores"
    )
    trajectory_timeout_s: float = Field(
        600.0, gt=0, description="of a whole trajectory: all turns, tools and waits"
    )

    @property
    def num_replicas(self) -> int:
        return self.replicas if isinstance(self.replicas, int) else len(self.replicas)

    def gpus_of(self, replica: int) -> list[int] | None:
        """Numbers of the GPUs of a server; None where the recipe names none."""
        return None if isinstance(self.replicas, int) else self.replicas[replica]

    @model_validator(mode="after")
    def _values_are_known(self) -> EngineConfig:
        if self.policy not in POLICIES:
            near = difflib.get_close_matches(self.policy, POLICIES, n=1, cutoff=0.0)[0]
            raise ValueError(f"policy = {self.policy!r} is not one of {', '.join(POLICIES)}; {near!r}?")
        _check_replicas(self.replicas)
        for name, value in self.args.items():
            _check_argument(name, value)
        return self

    @model_validator(mode="after")
    def _options_fit_the_kind(self) -> EngineConfig:
        if self.kind == "embedded":
            given = {
                "args": bool(self.args),
                "publish = 'broadcast'": self.publish == "broadcast",
                "placement = 'restart'": self.placement == "restart",
                "replicas with GPU numbers": not isinstance(self.replicas, int),
            }
            for what in (name for name, is_given in given.items() if is_given):
                raise ValueError(f"{what} is of servers only; leave it out, or set kind = 'sglang'")
        if self.placement == "restart" and self.publish == "broadcast":
            raise ValueError(
                "publish = 'broadcast' goes into running servers, and placement = 'restart' stops them; "
                "set publish = 'disk' or placement = 'split'"
            )
        if self.deterministic and (self.kind != "embedded" or self.num_replicas > 1):
            raise ValueError(
                "deterministic = true is of one embedded engine: with several, timing decides what runs "
                "where; set it to false, or kind = 'embedded' and replicas = 1"
            )
        return self


def _check_replicas(replicas: int | list[list[int]]) -> None:
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


def _check_argument(name: str, value: Any) -> None:
    plain = name.replace("_", "-").lstrip("-")
    if plain in OWN_ARGS:
        raise ValueError(f"args.{name} = {value!r}: rocstar sets it itself; leave it out")
    if name.startswith("-") or not plain:
        raise ValueError(f"args.{name}: names go without dashes in front; write {plain!r}")
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str | int | float | bool) for item in items):
        raise ValueError(f"args.{name} = {value!r}: a text, a number, true, false or a list of them")

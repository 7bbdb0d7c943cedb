"""SGLang as `engine.kind` of a recipe, with servers whose ports a test knows."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from rocstar.engine.inference.sglang.server import Launcher, ServerProcess
from rocstar.train.serving.sglang import SGLang


class NotedServer(ServerProcess):
    """A server as ever; `ports` are those of all that were made, in order."""

    ports: ClassVar[list[int]] = []

    def __init__(self, command: Sequence[str], *, log_path: Path, env: Mapping[str, str | None] | None = None) -> None:
        super().__init__(command, log_path=log_path, env=env)
        self.ports.append(int(command[command.index("--port") + 1]))


class NotedSGLang(SGLang):
    """What `engine.kind` names."""

    launcher: ClassVar[Launcher] = NotedServer

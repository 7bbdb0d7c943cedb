"""Bodies of SandboxFusion's dialect to typed requests. Pure; field names are that API's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rocstar.sandbox import files as program_files
from rocstar.sandbox.service.borrowed import fault, raise_all, read_body
from rocstar.sandbox.service.decode import check_text
from rocstar.sandbox.service.decode_code_judge import SCRIPT_END
from rocstar.sandbox.service.errors import Refused
from rocstar.sandbox.service.mistakes import Mistake
from rocstar.sandbox.service.models import LEAST_S, MAX_GIVEN_BYTES, CodeRunBody, NotebookBody, models_of
from rocstar.sandbox.service.rules import Rules
from rocstar.sandbox.types import Limits

OWN_FLAVOURS = ("cpp", "bash")
"""Languages that are flavours of the same name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeRun:
    """A body of /run_code. code: with the end that a script has. files: name to bytes, to exist before the
    run. fetch_files: names to send back."""

    code: str
    language: str
    stdin: str
    limits: Limits
    files: dict[str, bytes]
    fetch_files: list[str]


def decode_run_code(body: bytes, rules: Rules) -> CodeRun:
    run = read_body(body, models_of(rules).code_run)
    files = {name: content for name, content in run.files.items() if content is not None}  # as that API does
    stdin = run.stdin or ""
    code = run.code if run.language in OWN_FLAVOURS else run.code + SCRIPT_END
    found = [*_texts({("code",): code, ("stdin",): stdin}), *_files(files), *_names(run.fetch_files)]
    raise_all(found)
    return CodeRun(
        code=code,
        language=run.language,
        stdin=stdin,
        limits=_limits(run.run_timeout, run, rules),
        files=files,
        fetch_files=run.fetch_files,
    )


def decode_run_jupyter(body: bytes, rules: Rules) -> tuple[NotebookBody, Limits]:
    """A body of /run_jupyter, and the limits of its interpreter."""
    run = read_body(body, models_of(rules).notebook)
    cells = {("cells", index): cell for index, cell in enumerate(run.cells)}
    raise_all([*_texts(cells), *_files(run.files), *_names(run.fetch_files)])
    return run, _limits(run.cell_timeout or run.total_timeout, run, rules, cpu_s=run.total_timeout)


def _texts(texts: Mapping[Any, str]) -> list[Mistake]:
    """What is wrong with texts, by their places."""
    found = []
    for loc, text in texts.items():
        try:
            check_text(text, ".".join(map(str, loc)))
        except Refused as refusal:
            found.append(fault(str(refusal), *loc))
    return found


def _limits(wall_s: float, run: CodeRunBody | NotebookBody, rules: Rules, *, cpu_s: float = 0.0) -> Limits:
    defaults = rules.default_limits
    memory_mb = run.memory_limit_MB
    return Limits(
        wall_s=max(LEAST_S, float(wall_s)),
        cpu_s=min(86_400, int(max(wall_s, cpu_s)) + 1),
        memory_bytes=memory_mb << 20 if memory_mb > 0 else defaults.memory_bytes,
        output_bytes=defaults.output_bytes,
        file_bytes=defaults.file_bytes,
        files=defaults.files,
    )


def _files(files: Mapping[str, bytes]) -> list[Mistake]:
    faults = {name: why for name in files if (why := program_files.fault_of(name))}
    found = [fault(why, "files", name) for name, why in faults.items()]
    if name := program_files.clash({name: files[name] for name in files if name not in faults}):
        found.append(fault("it is a directory of another file", "files", name))
    total, most = sum(map(len, files.values())), MAX_GIVEN_BYTES
    if total > most:
        largest = max(files, key=lambda name: len(files[name]))
        msg = f"the files have {total} bytes together; at most {most} bytes are taken"
        ctx = {"actual_length": total, "max_length": most}
        found.append(Mistake(kind="too_long", loc=("files", largest), msg=msg, value=None, ctx=ctx))
    return found


def _names(names: list[str]) -> list[Mistake]:
    faults = (program_files.fault_of(name, fetched=True) for name in names)
    return [fault(why, "fetch_files") for why in faults if why]

"""The bodies that the three dialects take, as msgspec models: what is decoded is what /openapi.json shows.

The classes give the types. What depends on the service (its flavours, its bounds, its defaults) is put into
models derived from them, once per service: `models_of(rules)`.
"""

from dataclasses import fields
from functools import lru_cache
from typing import Annotated, Any, Generic, Literal, TypeVar, cast

import msgspec
from msgspec import Meta, Struct

from rocstar.sandbox.files import MAX_FILES as MOST_FILES
from rocstar.sandbox.service.errors import Refused, TooLarge
from rocstar.sandbox.service.rules import AUTO, MAX_DEADLINE_S, Rules
from rocstar.sandbox.types import Limits

Deadline = Annotated[float, Meta(gt=0, le=MAX_DEADLINE_S)] | None
Seed = Annotated[int, Meta(ge=0)] | None
"""Below 2**64, a bound that msgspec cannot keep: it compares in 64 bits with a sign."""

MAX_VALUES = 4_000_000
"""Of one body: reading as many takes a tenth of a second, of everybody's."""

MAX_EXPLAINED_VALUES = 500_000
"""Of a body that does not fit and is read once more, slowly, to say what is wrong with it."""

_COUNTED_BYTES = 1 << 16

# --- native ----------------------------------------------------------------------------------------------


MAX_JSON_FILES_BYTES = 8 << 20
"""Of all files in one JSON text: while it is read or written nobody else's is. What is larger goes by itself:
/v1/sessions/{id}/files."""

_TAKEN = Meta(
    max_length=MOST_FILES, description=f"name to base64; together at most {MAX_JSON_FILES_BYTES} bytes"
)
GivenFiles = Annotated[dict[str, bytes], _TAKEN]
WantedFiles = Annotated[list[str], Meta(max_length=MOST_FILES)]


class RequestBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """One program."""

    code: str
    stdin: str | None = ""
    limits: Any = None
    seed: Seed = None
    flavour: str | None = AUTO


class RunBody(RequestBody, kw_only=True, forbid_unknown_fields=True):
    """One program, and until when. `displays`: figures, and what `display` shows, are wanted."""

    deadline_s: Deadline = None
    files: GivenFiles = {}
    fetch_files: WantedFiles = []
    displays: bool = False


class BatchBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Many programs."""

    requests: list[RequestBody]
    stream: bool = False
    deadline_s: Deadline = None


class SessionBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """An interpreter that keeps its state."""

    limits: Any = None
    seed: Seed = None
    flavour: str | None = AUTO


class CellBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """One cell of a session."""

    code: str
    wall_s: float | None = None
    deadline_s: Deadline = None
    files: GivenFiles = {}
    fetch_files: WantedFiles = []
    displays: bool = False


# --- code-judge: fields in the order in which that server complains of them --------------------------------

JudgeType = Literal["python", "cpp", "math"]


class SubmissionBody(Struct, kw_only=True):
    """One program to judge."""

    sub_id: str | None = None
    type: JudgeType
    options: dict[str, str] | None = None
    solution: str
    input: str | None = None
    expected_output: str | None = None


class SubmissionsBody(Struct, kw_only=True):
    """Many programs to judge."""

    sub_id: str | None = None
    type: Literal["batch"] = "batch"
    submissions: list[SubmissionBody]


# --- SandboxFusion -----------------------------------------------------------------------------------------

LANGUAGES = (
    *("python", "cpp", "nodejs", "go", "go_test", "java", "php", "csharp", "bash", "typescript", "sql"),
    *("rust", "cuda", "lua", "R", "perl", "D_ut", "ruby", "scala", "julia", "pytest", "junit"),
    *("kotlin_script", "jest", "verilog", "python_gpu", "lean", "swift", "racket"),
)
DEFAULT_S = {"compile_timeout": 10, "run_timeout": 10, "total_timeout": 45}
LEAST_S = 0.001
MAX_CELLS = 1000
MAX_FILES = 32
"""Given and fetched."""

MAX_GIVEN_BYTES = 32 << 20
"""Of all files that are given; of those fetched MAX_JSON_FILES_BYTES come back."""

_ABOUT_FILES = Meta(
    max_length=MAX_FILES, description=f"name to content; together at most {MAX_GIVEN_BYTES} bytes"
)
FetchFiles = Annotated[list[str], Meta(max_length=MAX_FILES)]


class CodeRunBody(Struct, kw_only=True):
    """A program with its files."""

    compile_timeout: float
    run_timeout: float
    memory_limit_MB: int = -1
    code: str
    stdin: str | None = ""
    language: str
    files: Annotated[dict[str, bytes | None], _ABOUT_FILES] = {}
    fetch_files: FetchFiles = []


class NotebookBody(Struct, kw_only=True):
    """The cells of a notebook. `cell_timeout`: 0 leaves each cell what is left of `total_timeout`."""

    cells: Annotated[list[str], Meta(max_length=MAX_CELLS)]
    cell_timeout: float = 0
    total_timeout: float
    memory_limit_MB: int = -1
    kernel: Literal["python3"] = "python3"
    files: Annotated[dict[str, bytes], _ABOUT_FILES] = {}
    fetch_files: FetchFiles = []


# --- verl-tool ---------------------------------------------------------------------------------------------


class ActionsBody(Struct, kw_only=True):
    """What policies wrote, one action of each trajectory."""

    trajectory_ids: list[str]
    actions: list[str]
    finish: list[bool] | None = None
    is_last_step: list[bool] | None = None
    extra_fields: list[dict[str, Any]] | None = None


# --- with the bounds of a service --------------------------------------------------------------------------

S = TypeVar("S", bound=Struct)
LISTS: Any = list  # of models that are made at run time, which no checker of types takes for types


class BodyModel(Generic[S]):
    """A body's model and its decoder.

    The borrowed dialects ignore fields that they do not know. Their decoder refuses them all the same: such a
    body takes the slow path (see mistakes.py), which reads what is ignored as strictly as the rest.
    """

    def __init__(self, model: type[S], exact: type[S] | None = None) -> None:
        self.type = model
        self._decoder = msgspec.json.Decoder(exact or model)

    def decode(self, body: bytes) -> S | None:
        """The body, or None if it does not fit, or only just: `mistakes` tells. Raises Refused for one that
        takes too long to read, or to read once more."""
        if len(body) > MAX_VALUES and holds_more_values(body, MAX_VALUES):
            raise TooLarge(f"the body has more than {MAX_VALUES} values; send fewer at a time", field="body")
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if holds_more_values(body, MAX_EXPLAINED_VALUES):
                raise Refused(f"the body does not fit: {error}", field="body") from None
            return None


def holds_more_values(body: bytes, most: int) -> bool:
    """Whether a JSON text may have more values than `most`, by its commas and brackets, those in strings too.
    Takes milliseconds, whatever the body: it stops where there are enough."""
    if len(body) <= most:
        return False
    found = 0
    for start in range(0, len(body), _COUNTED_BYTES):
        end = start + _COUNTED_BYTES
        found += sum(body.count(mark, start, end) for mark in (b",", b"[", b"{"))
        if found > most:
            return True
    return False


class BodyModels:
    """All models of a service's bodies."""

    def __init__(self, rules: Rules) -> None:
        limits = limits_model(rules)
        program = {"limits": limits | None, "flavour": Literal[(AUTO, *rules.flavours)] | None}
        wall_s = Annotated[float, Meta(gt=0, le=rules.max_wall_s)] | None
        request = narrowed(RequestBody, **program)
        many = Meta(min_length=1, max_length=rules.max_calls_per_batch)
        self.limits = limits
        self.request = request
        self.run = BodyModel(narrowed(RunBody, **program))
        self.batch = BodyModel(narrowed(BatchBody, requests=Annotated[LISTS[request], many]))
        self.batch_of_any = narrowed(BatchBody, requests=Annotated[list[Any], many])
        self.session = BodyModel(narrowed(SessionBody, **program))
        self.cell = BodyModel(narrowed(CellBody, wall_s=wall_s))

        submission = narrowed(SubmissionBody)
        exact = closed(submission)
        self.submission = BodyModel(submission, exact)
        self.submissions = BodyModel(
            narrowed(SubmissionsBody, submissions=Annotated[LISTS[submission], many]),
            closed(narrowed(SubmissionsBody, submissions=Annotated[LISTS[exact], many])),
        )

        memory = Annotated[int, Meta(ge=-1, le=rules.max_memory_bytes >> 20)]
        code_run = narrowed(
            CodeRunBody,
            language=Literal[LANGUAGES],
            memory_limit_MB=memory,
            **seconds(rules, "compile_timeout", "run_timeout"),
        )
        self.code_run = BodyModel(code_run, closed(code_run))
        cell_s = Annotated[float, Meta(ge=0, le=rules.max_wall_s)]
        notebook = narrowed(
            NotebookBody, cell_timeout=cell_s, memory_limit_MB=memory, **seconds(rules, "total_timeout")
        )
        self.notebook = BodyModel(notebook, closed(notebook))
        actions = narrowed(ActionsBody, trajectory_ids=Annotated[list[str], many])
        self.actions = BodyModel(actions, closed(actions))


@lru_cache(maxsize=16)
def models_of(rules: Rules) -> BodyModels:
    """The models of a service with these rules."""
    return BodyModels(rules)


def limits_model(rules: Rules) -> type[Struct]:
    """`Limits`, by the bounds and defaults of the service."""
    kinds = []
    for item in fields(Limits):
        kind: Any = item.type
        low, high = rules.bounds_of(item.name)
        default = getattr(rules.default_limits, item.name)
        kinds.append((item.name, Annotated[kind, Meta(ge=low, le=high)], default))
    return msgspec.defstruct("Limits", kinds, kw_only=True, forbid_unknown_fields=True)


def seconds(rules: Rules, *names: str) -> dict[str, Any]:
    """Time limits that a body need not name: that API's default, unless the service allows less."""
    kind = Annotated[float, Meta(ge=LEAST_S, le=rules.max_wall_s)]
    return {name: (kind, min(DEFAULT_S[name], rules.max_wall_s)) for name in names}


def narrowed(model: type[S], **kinds: Any) -> type[S]:
    """A model with other types for some of its fields, or (type, default). Named without `Body`."""
    given: list[Any] = []
    for item in msgspec.structs.fields(model):
        if item.name in kinds:
            kind = kinds[item.name]
            if isinstance(kind, tuple):
                given.append((item.name, *kind))
            else:
                given.append((item.name, kind) if item.required else (item.name, kind, item.default))
    derived = msgspec.defstruct(
        model.__name__.removesuffix("Body"),
        given,
        bases=(model,),
        kw_only=True,
        forbid_unknown_fields=model.__struct_config__.forbid_unknown_fields,
        namespace={"__doc__": model.__doc__, "__reduce__": _reduced},
    )
    return cast(type[S], derived)


def _reduced(body: Struct) -> tuple[Any, ...]:
    """As one of the class that was derived from: another process has classes of its own that are derived."""
    kinds = (kind for kind in type(body).__mro__ if globals().get(kind.__name__) is kind)
    return _made, (next(kinds), msgspec.structs.asdict(body))


def _made(model: type[S], values: dict[str, Any]) -> S:
    return model(**values)


def closed(model: type[S]) -> type[S]:
    """The same, with no other fields."""
    derived = msgspec.defstruct(model.__name__, [], bases=(model,), kw_only=True, forbid_unknown_fields=True)
    return cast(type[S], derived)

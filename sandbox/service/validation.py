"""The limits of a service, and the validation of request bodies: JSON bytes to msgspec models, and errors by
field.

    bytes --msgspec--> body                       valid: the only path of a correct client
      |  invalid
      v
    json --> value --find_field_errors(value, model)--> every error, or none: then convert(value, model)

msgspec reports only the first error, without the value, and stops at an unpaired surrogate. The compatible
dialects list all errors, and one invalid call of a batch must not affect the others. So an invalid body is
parsed again. 64 programs take 5 µs on the first path; the second takes 16 µs for the JSON and 60 µs more when
one of the programs is invalid.
"""

import json
import operator
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, Literal, NoReturn, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec import Struct

from rocstar.sandbox.child.import_scan import select_flavour
from rocstar.sandbox.command_line import suggest
from rocstar.sandbox.http.errors import InvalidJson, RequestError, SchemaError
from rocstar.sandbox.types import DEFAULT_LIMITS, MAX_TEXT_BYTES, Limits

AUTO = "auto"
"""The flavour of a call that names none: selected by the program's imports."""

MAX_DEADLINE_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServiceLimits:
    """The limits of a service. Compared by identity, because the dialects cache their models per object.

    Attributes:
        flavours: The available flavours.
        max_calls_per_batch: The maximum number of calls in a batch.
        max_wall_s: The maximum time limit of a call, in seconds.
        max_memory_bytes: The maximum memory limit of a call.
        default_limits: The limits of a call that gives none.
    """

    flavours: tuple[str, ...]
    max_calls_per_batch: int = 65_536
    max_wall_s: float = 3600.0
    max_memory_bytes: int = 64 << 30
    default_limits: Limits = field(default=DEFAULT_LIMITS)

    def select_flavour(self, code: str) -> str:
        """The flavour that suits a program."""
        return select_flavour(code, self.flavours)


SCRIPT_END = "\npass\n"
"""Appended to a Python submission: a script shows no trailing value, so none is computed."""

Loc = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    """An error of a body, in pydantic's words.

    Attributes:
        kind: A short stable word.
        loc: The path of names and indices.
        msg: The reason.
        value: The invalid value; for a missing field, its object.
        fix: The expected value.
        ctx: The violated bounds or the allowed names.
    """

    kind: str
    loc: Loc
    msg: str
    value: Any
    fix: str = ""
    ctx: dict[str, Any] = field(default_factory=dict)

    def detail(self) -> dict[str, Any]:
        """An item of the list that the borrowed dialects answer."""
        detail = {"type": self.kind, "loc": ["body", *self.loc], "msg": self.msg, "input": self.value}
        return {**detail, "ctx": self.ctx} if self.ctx else detail


_PLAIN: dict[Any, tuple[tuple[type, ...], str, str, str]] = {
    str: ((str,), "string_type", "Input should be a valid string", "give a string"),
    bytes: ((str,), "string_type", "Input should be a valid string", "give a string"),
    int: ((int,), "int_type", "Input should be a valid integer", "give a whole number"),
    float: ((int, float), "float_type", "Input should be a valid number", "give a number"),
    bool: ((bool,), "bool_type", "Input should be a valid boolean", "give true or false"),
    list: ((list,), "list_type", "Input should be a valid list", "give a list"),
    dict: ((dict,), "dict_type", "Input should be a valid dictionary", "give an object"),
    msgspec.Struct: (
        *((dict,), "model_attributes_type"),
        *("Input should be a valid dictionary or object to extract fields from", "give an object"),
    ),
}


def find_field_errors(value: Any, model: Any, loc: Loc = ()) -> Iterator[FieldError]:
    """Yields what keeps a JSON value from being a `model`: a Struct, or a type that a field of one has. Goes
    as deep as the model does, however deep the value is."""
    origin = get_origin(model)
    if origin is Annotated:
        kind, *metas = get_args(model)
        yield from _check_bounds(value, kind, metas[0], loc)
    elif origin in (Union, UnionType):
        members = get_args(model)
        if value is not None or NoneType not in members:
            (kind,) = [member for member in members if member is not NoneType]
            yield from find_field_errors(value, kind, loc)
    elif origin is Literal:
        names = get_args(model)
        if not (isinstance(value, str) and value in names):
            quoted = [f"'{name}'" for name in names]
            expected = " or ".join([", ".join(quoted[:-1]), quoted[-1]]) if len(quoted) > 1 else quoted[0]
            msg, fix = f"Input should be {expected}", f"there are {', '.join(names)}"
            yield FieldError(kind="literal_error", loc=loc, msg=msg, value=value, fix=fix, ctx={"expected": expected})
    elif model is Any:
        return
    else:
        yield from _check_type(value, model, origin, loc)


def _check_type(value: Any, model: Any, origin: Any, loc: Loc) -> Iterator[FieldError]:
    is_struct = isinstance(model, type) and issubclass(model, msgspec.Struct)
    types, kind, msg, fix = _PLAIN[msgspec.Struct if is_struct else origin or model]
    if type(value) not in types:
        yield FieldError(kind=kind, loc=loc, msg=msg, value=value, fix=fix)
    elif is_struct:
        yield from _check_fields(value, model, loc)
    elif origin is list:
        (item_model,) = get_args(model)
        for index, item in enumerate(value):
            if not is_valid(item, item_model):
                yield from find_field_errors(item, item_model, (*loc, index))
    elif origin is dict:
        for name, item in value.items():
            yield from find_field_errors(item, get_args(model)[1], (*loc, name))
    elif model is bytes and not is_valid(value, bytes):
        why = "the content is not base64"
        yield FieldError(kind="value_error", loc=loc, msg=why, value=None, fix="give base64")


_struct_fields = lru_cache(maxsize=64)(msgspec.structs.fields)
_suggest = lru_cache(maxsize=256)(suggest)


def _check_fields(value: dict[str, Any], model: type[msgspec.Struct], loc: Loc) -> Iterator[FieldError]:
    fields = _struct_fields(model)
    if model.__struct_config__.forbid_unknown_fields:
        known = tuple(sorted(item.name for item in fields))
        for name in value:
            if name not in known:
                msg, fix = "Extra inputs are not permitted", _suggest(name[:100], known)
                yield FieldError(kind="extra_forbidden", loc=(*loc, name), msg=msg, value=None, fix=fix)
    for item in fields:
        if item.name in value:
            yield from find_field_errors(value[item.name], item.type, (*loc, item.name))
        elif item.required:
            fix = next(find_field_errors(None, item.type)).fix
            yield FieldError(kind="missing", loc=(*loc, item.name), msg="Field required", value=value, fix=fix)


def _check_bounds(value: Any, kind: Any, meta: msgspec.Meta, loc: Loc) -> Iterator[FieldError]:
    """A length is judged before the items: there can be millions of them."""
    if isinstance(value, list | dict):
        short, long = meta.min_length or 0, meta.max_length
        if len(value) < short or (long is not None and len(value) > long):
            yield _length_error(value, short, long, loc)
            return
    found = False
    for one in find_field_errors(value, kind, loc):
        found = True
        yield one
    if not found and isinstance(value, int | float):
        yield from _check_range(value, meta, loc)


def _length_error(value: "list[Any] | dict[str, Any]", short: int, long: int | None, loc: Loc) -> FieldError:
    """The value of one that is too long is left out: an answer must stay far smaller than the body."""
    noun = "List" if isinstance(value, list) else "Dictionary"
    number = len(value)
    ctx: dict[str, Any] = {"field_type": noun}
    if number < short:
        msg = f"{noun} should have at least {short} item after validation, not {number}"
        ctx |= {"min_length": short, "actual_length": number}
        return FieldError(kind="too_short", loc=loc, msg=msg, value=value, fix=f"give at least {short}", ctx=ctx)
    msg = f"{noun} should have at most {long} items after validation, not {number}"
    ctx |= {"max_length": long, "actual_length": number}
    return FieldError(kind="too_long", loc=loc, msg=msg, value=None, fix=f"give at most {long}", ctx=ctx)


def _check_range(value: float, meta: msgspec.Meta, loc: Loc) -> Iterator[FieldError]:
    """NaN keeps no bound."""
    bounds = (
        ("greater_than_equal", "ge", meta.ge, "greater than or equal to", operator.ge),
        ("greater_than", "gt", meta.gt, "greater than", operator.gt),
        ("less_than_equal", "le", meta.le, "less than or equal to", operator.le),
    )
    for kind, name, bound, words, keeps in bounds:
        if bound is not None and not keeps(value, bound):
            least = f"{meta.ge}" if meta.gt is None else f"more than {meta.gt}"
            fix = f"this service takes {least} {'or more' if meta.le is None else f'to {meta.le}'}"
            msg = f"Input should be {words} {bound:g}"
            yield FieldError(kind=kind, loc=loc, msg=msg, value=value, fix=fix, ctx={name: bound})
            return


def is_valid(value: Any, model: Any) -> bool:
    """Return True if the value fits the model. One call into C, for items of a batch with an invalid item."""
    try:
        msgspec.convert(value, model)
    except (msgspec.ValidationError, UnicodeEncodeError):  # the latter: half a surrogate pair
        return False
    return True


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant)
_LAX = json.JSONDecoder()


def parse_json(body: bytes, *, strict: bool = True) -> Any:
    """Return the value of a JSON document. strict: reject NaN and Infinity, as the standard does."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidJson(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    try:
        return (_STRICT if strict else _LAX).decode(text)
    except json.JSONDecodeError as error:
        raise InvalidJson(
            f"the body is not JSON: {error.msg} at character {error.pos}", position=error.pos, reason=error.msg
        ) from None
    except RecursionError:
        raise InvalidJson("the body is nested too deeply") from None
    except ValueError as error:  # a constant, or an integer of more digits than the interpreter converts
        raise InvalidJson(f"the body is not JSON that can be read: {error}") from None


def check_text(text: str, name: str) -> None:
    """Refuses what no program can be given: too long, or half of a surrogate pair."""
    size = len(text)
    if not text.isascii() and size <= MAX_TEXT_BYTES:
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            half = f"U+{ord(text[error.start]):04X}"
            raise RequestError(
                f"{name} has half a surrogate pair ({half} at {error.start}); that is invalid", field=name
            ) from None
    if size > MAX_TEXT_BYTES:
        message = f"{name} has {size} bytes; at most {MAX_TEXT_BYTES} are taken"
        raise RequestError(message, field=name, status=400, kind="too_large")


MAX_VALUES = 4_000_000
"""The maximum number of values of a body: parsing as many blocks the event loop for 0.1 s."""

MAX_EXPLAINED_VALUES = 500_000
"""The maximum number of values of an invalid body that is parsed again to describe its errors."""

_COUNTED_BYTES = 1 << 16


# --- with the bounds of a service --------------------------------------------------------------------------

S = TypeVar("S", bound=Struct)
LISTS: Any = list  # of models that are made at run time, which no checker of types takes for types


class BodyModel(Generic[S]):
    """The model and the decoder of a body.

    The compatible dialects ignore unknown fields. Their decoder rejects them all the same: such a body
        takes the slow path (see `find_field_errors`), which parses ignored fields as strictly as the
        others.
    """

    def __init__(self, model: type[S], exact: type[S] | None = None) -> None:
        self.type = model
        self._decoder = msgspec.json.Decoder(exact or model)

    def decode(self, body: bytes) -> S | None:
        """Return the body, or None if `find_field_errors` must check it. Raises RequestError for a body that
        takes too long to parse, or to parse again."""
        if len(body) > MAX_VALUES and has_more_values(body, MAX_VALUES):
            message = f"the body has more than {MAX_VALUES} values; send fewer at a time"
            raise RequestError(message, field="body", kind="too_large")
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if has_more_values(body, MAX_EXPLAINED_VALUES):
                raise RequestError(f"the body does not fit: {error}", field="body") from None
            return None


def has_more_values(body: bytes, most: int) -> bool:
    """Return True if a JSON text may have more values than `most`, by its commas and brackets, including
    those in strings. Takes milliseconds for any body, since it stops at `most`."""
    if len(body) <= most:
        return False
    found = 0
    for start in range(0, len(body), _COUNTED_BYTES):
        end = start + _COUNTED_BYTES
        found += sum(body.count(mark, start, end) for mark in (b",", b"[", b"{"))
        if found > most:
            return True
    return False


def narrow_model(model: type[S], **kinds: Any) -> type[S]:
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
        namespace={"__doc__": model.__doc__, "__reduce__": _reduce_body},
    )
    return cast(type[S], derived)


def _reduce_body(body: Struct) -> tuple[Any, ...]:
    """Pickle the body as its base class: another process has different derived classes."""
    kinds = (kind for kind in type(body).__mro__ if getattr(sys.modules[kind.__module__], kind.__name__, None) is kind)
    return partial(next(kinds), **msgspec.structs.asdict(body)), ()


def close_model(model: type[S]) -> type[S]:
    """Return the model without unknown fields."""
    derived = msgspec.defstruct(model.__name__, [], bases=(model,), kw_only=True, forbid_unknown_fields=True)
    return cast(type[S], derived)


MAX_DETAILS = 100
"""The maximum number of errors in a response, which must be much smaller than the body."""


def parse_body(body: bytes, model: BodyModel[S]) -> S:
    """Parse and check a body. Raises SchemaError; InvalidJson for a 400 of those servers; RequestError."""
    found = model.decode(body)
    if found is not None:
        return found
    if not body:
        raise_field_errors([FieldError(kind="missing", loc=(), msg="Field required", value=None)])
    try:
        value = parse_json(body, strict=False)
    except InvalidJson as error:
        if error.position is None:
            raise  # not UTF-8, or nested too deeply
        ctx, loc = {"error": error.reason}, (error.position,)
        invalid = FieldError(kind="json_invalid", loc=loc, msg="JSON decode error", value={}, ctx=ctx)
        raise SchemaError.of([invalid.detail()]) from None
    # Before `convert`, which takes NaN for a number within any bounds.
    wrong = list(islice(find_field_errors(value, model.type), MAX_DETAILS))
    for one in wrong:
        if one.kind == "too_long" and one.loc == ("submissions",):
            message = f"submissions has {one.ctx['actual_length']} items; {one.fix}"
            raise RequestError(message, field="submissions", kind="too_large")
    raise_field_errors(wrong)
    try:
        return msgspec.convert(value, model.type)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise SchemaError.of([field_error(f"the body does not fit: {error}").detail()]) from None


def field_error(msg: str, *loc: str | int) -> FieldError:
    """A value of the right type that cannot be taken. It is left out: it may be long, or no text."""
    return FieldError(kind="value_error", loc=loc, msg=msg, value=None)


def raise_field_errors(found: list[FieldError]) -> None:
    if found:
        raise SchemaError.of([one.detail() for one in found[:MAX_DETAILS]])

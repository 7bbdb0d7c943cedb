"""Bodies of the two borrowed dialects, whose servers describe every mistake of a body in one answer."""

from itertools import islice
from typing import NoReturn, TypeVar

import msgspec

from rocstar.sandbox.service.decode import parse_json
from rocstar.sandbox.service.errors import SchemaError, TooLarge, Unparsable
from rocstar.sandbox.service.mistakes import Mistake, mistakes
from rocstar.sandbox.service.models import BodyModel

MAX_DETAILS = 100
"""Given in one answer, which must stay far smaller than the body it complains about."""

S = TypeVar("S", bound=msgspec.Struct)


def read_body(body: bytes, model: BodyModel[S]) -> S:
    """Raises SchemaError, or Unparsable where those servers answer 400; TooLarge for too many submissions."""
    found = model.decode(body)
    if found is not None:
        return found
    if not body:
        _raise(Mistake(kind="missing", loc=(), msg="Field required", value=None))
    try:
        value = parse_json(body, strict=False)
    except Unparsable as error:
        if error.position is None:
            raise  # not UTF-8, or nested too deeply
        ctx = {"error": error.reason}
        _raise(
            Mistake(kind="json_invalid", loc=(error.position,), msg="JSON decode error", value={}, ctx=ctx)
        )
    # Before `convert`, which takes NaN for a number within any bounds.
    wrong = list(islice(mistakes(value, model.type), MAX_DETAILS))
    for mistake in wrong:
        if mistake.kind == "too_long" and mistake.loc == ("submissions",):
            raise TooLarge(
                f"submissions has {mistake.ctx['actual_length']} items; {mistake.fix}", field="submissions"
            )
    raise_all(wrong)
    try:
        return msgspec.convert(value, model.type)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        _raise(fault(f"the body does not fit: {error}"))


def fault(msg: str, *loc: str | int) -> Mistake:
    """A value of the right type that cannot be taken. It is left out: it may be long, or no text."""
    return Mistake(kind="value_error", loc=loc, msg=msg, value=None)


def raise_all(found: list[Mistake]) -> None:
    if found:
        raise SchemaError.of([mistake.detail() for mistake in found[:MAX_DETAILS]])


def _raise(mistake: Mistake) -> NoReturn:
    raise SchemaError.of([mistake.detail()])

"""Checks in the manner of the two borrowed servers, which describe every mistake of a body in one answer.

A detail is `{"type", "loc", "msg", "input"}`, with `ctx` where there is something to say. At most
`MAX_DETAILS` are given: an answer must stay far smaller than the body it complains about.
"""

from typing import Any, NoReturn

from rocstar.sandbox.service.decode import parse_json
from rocstar.sandbox.service.errors import SchemaError, Unparsable

MAX_DETAILS = 100

Loc = tuple[str | int, ...]


class Details:
    """Collects what is wrong with one body."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []

    @property
    def full(self) -> bool:
        return len(self.found) >= MAX_DETAILS

    def add(self, kind: str, loc: Loc, msg: str, value: Any, **ctx: Any) -> None:
        if not self.full:
            detail = {"type": kind, "loc": ["body", *loc], "msg": msg, "input": value}
            self.found.append({**detail, "ctx": ctx} if ctx else detail)

    def raise_if_any(self) -> None:
        if self.found:
            raise SchemaError(self.found)

    def missing(self, loc: Loc, whole: Any) -> None:
        self.add("missing", loc, "Field required", whole)

    def text(self, value: Any, loc: Loc, *, nullable: bool = False) -> None:
        if not (isinstance(value, str) or (nullable and value is None)):
            self.add("string_type", loc, "Input should be a valid string", value)

    def literal(self, value: Any, loc: Loc, names: tuple[str, ...]) -> None:
        if not (isinstance(value, str) and value in names):
            quoted = [f"'{name}'" for name in names]
            expected = " or ".join([", ".join(quoted[:-1]), quoted[-1]]) if len(quoted) > 1 else quoted[0]
            self.add("literal_error", loc, f"Input should be {expected}", value, expected=expected)

    def is_object(self, value: Any, loc: Loc) -> bool:
        if isinstance(value, dict):
            return True
        msg = "Input should be a valid dictionary or object to extract fields from"
        self.add("model_attributes_type", loc, msg, value)
        return False

    def mapping(self, value: Any, loc: Loc, *, values_nullable: bool = False) -> None:
        """A dictionary from strings to strings."""
        if not isinstance(value, dict):
            self.add("dict_type", loc, "Input should be a valid dictionary", value)
            return
        for name, text in value.items():
            self.text(text, (*loc, name), nullable=values_nullable)
            if self.full:
                return

    def is_list(self, value: Any, loc: Loc) -> bool:
        if isinstance(value, list):
            return True
        self.add("list_type", loc, "Input should be a valid list", value)
        return False

    def texts(self, value: Any, loc: Loc) -> None:
        if self.is_list(value, loc):
            for index, text in enumerate(value):
                self.text(text, (*loc, index))
                if self.full:
                    return

    def number(self, value: Any, loc: Loc, *, low: float, high: float, whole: bool = False) -> None:
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or (whole and isinstance(value, float))
        ):
            name = "integer" if whole else "number"
            self.add("int_type" if whole else "float_type", loc, f"Input should be a valid {name}", value)
        elif not low <= value:
            self.add(
                "greater_than_equal", loc, f"Input should be greater than or equal to {low:g}", value, ge=low
            )
        elif not value <= high:
            self.add(
                "less_than_equal", loc, f"Input should be less than or equal to {high:g}", value, le=high
            )


def parse_body(body: bytes) -> Any:
    """The JSON value of a body; its mistakes are described as those servers do."""
    if not body:
        _raise("missing", (), "Field required", None)
    try:
        return parse_json(body, strict=False)
    except Unparsable as error:
        if error.position is None:
            raise  # not UTF-8, or nested too deeply: those servers answer 400 to it
        details = Details()
        details.add("json_invalid", (error.position,), "JSON decode error", {}, error=error.reason)
        raise SchemaError(details.found) from None


def _raise(kind: str, loc: Loc, msg: str, value: Any) -> NoReturn:
    details = Details()
    details.add(kind, loc, msg, value)
    raise SchemaError(details.found)

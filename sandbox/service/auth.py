"""Who may call the service, where there are tokens and where there are none."""

from collections.abc import Mapping

from rocstar.sandbox.loopback import foreign
from rocstar.sandbox.loopback.tokens import MAX_OWNER_CHARS, Owners, is_word
from rocstar.sandbox.service.errors import Refused

TOKEN_VARIABLE = "ROCSTAR_SANDBOX_TOKEN"
RUN_HEADER = "Rocstar-Run"
"""Names the run that a request belongs to, where no token tells whose it is."""


def owner_of(owners: Owners, headers: Mapping[str, str]) -> str | None:
    """The name of a request's owner, "" for nobody in particular; None for one that may not call. Raises
    Refused for a name of a run that is none."""
    if owners:
        return owners.of_token(headers)
    name = headers.get(RUN_HEADER, "")
    if name and not is_word(name):
        message = f"{RUN_HEADER} is {name[:60]!a}; give at most {MAX_OWNER_CHARS} printable ASCII letters"
        raise Refused(message, field=RUN_HEADER)
    return name


def refuse_web_pages(headers: Mapping[str, str], host: str) -> None:
    """For a service without tokens. Raises Refused for what `foreign` says something of."""
    if (found := foreign(headers, host)) is not None:
        raise Refused(found.why, field=found.header, status=403, kind="forbidden")

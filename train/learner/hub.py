"""The state of a name on the Hugging Face hub without downloading it: cached, available, or missing."""

import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Literal

from huggingface_hub import constants, get_token
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # its page lists it

ASK_S = 4.0
"""Seconds to wait for the hub: without a network the error should come early."""
Kind = Literal["models", "datasets"]


class Unreachable(Exception):
    """The hub cannot be asked; the message says why."""


def is_cached(name: str, kind: Kind) -> bool:
    """Return True if a snapshot of the name is in the hub's cache."""
    folder = Path(constants.HF_HUB_CACHE) / f"{kind}--{name.replace('/', '--')}" / "snapshots"
    return folder.is_dir() and any(folder.iterdir())


def exists(name: str, kind: Kind, *, open_url: Callable[..., object] = urllib.request.urlopen) -> bool:
    """Return True if the hub has the name and this user may read it. Asked once per name, and not for an
    invalid name.

    Raises:
        Unreachable: the hub does not answer.
    """
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    if constants.HF_HUB_OFFLINE:
        raise Unreachable("HF_HUB_OFFLINE is set")
    token = get_token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"{constants.ENDPOINT}/api/{kind}/{name}", headers=headers)
    try:
        open_url(request, timeout=ASK_S)
    except urllib.error.HTTPError as error:
        if error.code in (401, 403, 404):
            return False
        raise Unreachable(f"{constants.ENDPOINT} answers {error.code}") from None
    except (OSError, HTTPException) as error:
        raise Unreachable(f"{constants.ENDPOINT}: {getattr(error, 'reason', error)}") from None
    return True

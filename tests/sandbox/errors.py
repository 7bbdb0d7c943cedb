"""The errors of the sandbox that tests expect."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rocstar.sandbox.types import SandboxError


@contextmanager
def sandbox_error(
    kind: str, match: str | None = None, *, retryable: bool | None = None
) -> Iterator[pytest.ExceptionInfo[SandboxError]]:
    """Expects a SandboxError of this kind. retryable: None if either is fine."""
    with pytest.raises(SandboxError, match=match) as caught:
        yield caught
    assert caught.value.kind == kind
    assert retryable in (None, caught.value.retryable)

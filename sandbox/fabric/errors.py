"""The errors that the fabric itself reports."""

from rocstar.sandbox.child.flavours import FLAVOURS
from rocstar.sandbox.types import SandboxError


def deadline_error() -> SandboxError:
    return SandboxError("the deadline passed before the program ended", kind="deadline", retryable=True)


def full_error(reason: str) -> SandboxError:
    return SandboxError(f"the fabric is full: {reason}. Try again later.", kind="full", retryable=True)


def unknown_flavour_error(flavour: str) -> SandboxError:
    return SandboxError(
        f"unknown flavour {flavour!r}. Choose from {', '.join(FLAVOURS)}.",
        kind="unknown_flavour",
        retryable=False,
    )


def no_worker_error(flavour: str, waited_s: float) -> SandboxError:
    return SandboxError(
        f"no worker of flavour {flavour} has been alive for {waited_s:.1f} s. Start one: "
        f"rocstar sandbox worker --flavours {flavour} --redis URL",
        kind="fabric",
        retryable=True,
    )


def lost_error(times: int) -> SandboxError:
    return SandboxError(
        f"Redis lost this call {times} times without an answer",
        kind="fabric",
        retryable=True,
    )


def poison_error(deaths: int) -> SandboxError:
    return SandboxError(
        f"{deaths} workers died while they held the entry of this call. It is not retried.",
        kind="fabric",
        retryable=False,
    )


def memory_error(size: int) -> SandboxError:
    return SandboxError(
        f"Redis has no memory for a result of {size} bytes. Try again later.", kind="full", retryable=True
    )


def too_large_error(size: int, most: int) -> SandboxError:
    return SandboxError(
        f"the result has {size} bytes; the fabric carries at most {most}. Lower output_bytes.",
        kind="fabric",
        retryable=False,
    )

"""A redis-server per test, and programs that end when the test says so."""

from collections.abc import Iterator

import pytest

from .harness import Programs, RedisServer, redis_server


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
def durable_redis() -> Iterator[RedisServer]:
    """Keeps every command over a restart."""
    with redis_server("--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


@pytest.fixture
def programs() -> Programs:
    return Programs()

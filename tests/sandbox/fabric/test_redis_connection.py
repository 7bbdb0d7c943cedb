"""No part of a password is ever shown, whatever is wrong with the URL."""

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.sandbox.fabric import RedisFabric
from rocstar.sandbox.fabric.redis_connection import connect, id_order, make_ref, redact_url, split_refs

SECRET = "hunter2"

passwords = st.text(st.sampled_from("ab/?#@:%&=[]1 é"), max_size=6).map(lambda text: SECRET + text)


@given(passwords, st.sampled_from(["redis://u:{}@host:1/0", "rediss://:{}@host", "unix://u:{}@/run/r.sock"]))
def test_a_raw_password_is_never_shown(password: str, form: str) -> None:
    for url in (form.format(password), form.format(password[::-1])):
        try:
            text = redact_url(url)
        except ValueError as error:
            text = str(error)
        assert "hunter" not in text
        assert "2" not in text
        assert "retnuh" not in text


@given(passwords)
def test_an_encoded_password_arrives_whole(password: str) -> None:
    client = connect(f"redis://user:{quote(password, safe='')}@host:77/3")
    options = client.connection_pool.connection_kwargs
    assert (options["password"], options["host"], options["port"], options["db"]) == (password, "host", 77, 3)
    assert SECRET not in repr(RedisFabric(f"redis://user:{quote(password, safe='')}@host:77/3"))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://localhost", "redis://localhost"),
        ("redis://", "redis://localhost"),
        ("redis://:x@10.0.0.1:6380/2?socket_timeout=3", "redis://10.0.0.1:6380/2"),
        ("rediss://u:x@[::1]:6380", "rediss://[::1]:6380"),
        ("unix:///run/redis.sock?db=2", "unix:///run/redis.sock"),
        ("unix://u:x@/run/redis.sock", "unix:///run/redis.sock"),
    ],
)
def test_places_are_shown(url: str, expected: str) -> None:
    assert redact_url(url) == expected


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("localhost:6379", "must begin with redis://"),
        ("", "must begin with redis://"),
        ("http://host", "must begin with redis://"),
        ("redis+cluster://host", "a Redis cluster is not supported"),
        ("redis://:hunter2/x@host", "percent-encode"),
        ("redis://host:port", "percent-encode"),
        ("redis://host/name", "percent-encode"),
        ("redis://host:1?socket_timeout=soon", "malformed"),
        ("unix://relative.sock", "percent-encode"),
    ],
)
def test_a_bad_url_says_what_is_wrong(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        RedisFabric(url)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_refs_name_stream_and_entry() -> None:
    refs = [make_ref("stdlib", "5-1"), make_ref("numeric", "4-0"), make_ref("stdlib", "6-0")]
    assert split_refs(refs) == {"stdlib": ["5-1", "6-0"], "numeric": ["4-0"]}


def test_ids_are_ordered_as_numbers() -> None:
    assert sorted(["10-0", "9-11", "9-2"], key=id_order) == ["9-2", "9-11", "10-0"]

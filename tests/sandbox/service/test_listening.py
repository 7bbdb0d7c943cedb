"""Listening sockets, and the client's address in the access log."""

import grp
import os
import socket
import stat
from pathlib import Path

import pytest
from aiohttp.test_utils import make_mocked_request

from rocstar.sandbox.http.access_log import find_client_address, parse_networks
from rocstar.sandbox.http.listening import LOOPBACK, Address, bind, listen

PROXIES = parse_networks(["10.0.0.0/8", "fd00::1"])


def families(address: Address) -> list[tuple[int, str, int]]:
    """Family, address and port of each socket, with its end."""
    bound = bind(address)
    try:
        return [(one.family, *one.getsockname()[:2]) for one in bound]
    finally:
        for one in bound:
            one.close()


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def test_the_default_is_loopback_of_both_families_at_one_port() -> None:
    found = families(Address(port=0))
    assert tuple(host for _, host, _ in found) == (LOOPBACK if has_ipv6() else LOOPBACK[:1])
    assert len({port for *_, port in found}) == 1


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_two_colons_stand_for_every_address_of_both_families() -> None:
    found = families(Address(hosts=("::",), port=0))
    assert {host for _, host, _ in found} == {"::", "0.0.0.0"} and len({port for *_, port in found}) == 1


def test_several_hosts_have_a_socket_each_and_one_that_is_given_twice_has_one() -> None:
    found = families(Address(hosts=("127.0.0.1", "127.0.0.2", "127.0.0.1"), port=0))
    assert [host for _, host, _ in found] == ["127.0.0.1", "127.0.0.2"]


def test_a_port_that_is_taken_in_one_family_is_no_free_one() -> None:
    with socket.create_server(("127.0.0.2", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=rf"127\.0\.0\.2:{port}: address already in use"):
            bind(Address(hosts=("127.0.0.1", "127.0.0.2"), port=port))
        with socket.create_server(("127.0.0.1", port)):
            pass  # what was bound before the failure is free again


def test_a_unix_socket_is_its_users_alone_and_replaces_a_stale_one(short_path: Path) -> None:
    path = short_path / "s"
    for _ in range(2):  # the second time there is what the first has left
        (one,) = bind(Address(port=0, unix=str(path)))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert listen([one]) == [f"unix:{path}"]
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
        with pytest.raises(ValueError, match="a process listens on it"):
            bind(Address(port=0, unix=str(path)))
        one.close()


def test_a_unix_socket_of_a_group_is_open_to_it(short_path: Path) -> None:
    path, group = short_path / "s", grp.getgrgid(os.getgid())
    (one,) = bind(Address(port=0, unix=str(path), unix_group=group.gr_name))
    one.close()
    found = path.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o660, group.gr_gid)


@pytest.mark.parametrize(
    ("path", "group", "why"),
    [
        ("file", "", "not a socket"),
        ("nowhere/s", "", "No such file or directory"),
        ("x" * 200, "", "path too long"),
        ("s", "nobody-has-this-group", "no group"),
    ],
)
def test_a_path_that_cannot_be_listened_on_is_refused(short_path: Path, path: str, group: str, why: str) -> None:
    (short_path / "file").write_text("kept")
    with pytest.raises(ValueError, match=rf"cannot listen on --unix .*{why}"):
        bind(Address(port=0, unix=str(short_path / path), unix_group=group))
    assert (short_path / "file").read_text() == "kept"


@pytest.mark.parametrize(
    ("peer", "headers", "client"),
    [
        ("192.0.2.1", {}, "192.0.2.1"),
        ("192.0.2.1", {"X-Forwarded-For": "198.51.100.7"}, "192.0.2.1"),  # anybody can write it
        ("10.1.2.3", {"X-Forwarded-For": "198.51.100.7"}, "198.51.100.7"),
        ("10.1.2.3", {"X-Forwarded-For": "1.1.1.1, 198.51.100.7, 10.9.9.9"}, "198.51.100.7"),
        ("10.1.2.3", {"X-Forwarded-For": "made up, 10.9.9.9"}, "10.9.9.9"),
        ("10.1.2.3", {"X-Forwarded-For": "198.51.100.7:4711"}, "198.51.100.7"),
        ("fd00::1", {"Forwarded": 'for="[2001:db8::1]:4711";proto=https'}, "2001:db8::1"),
        ("10.1.2.3", {"Forwarded": "for=198.51.100.7, for=_hidden"}, "10.1.2.3"),
        ("10.1.2.3", {"X-Forwarded-For": "198.51.100.7", "Forwarded": "for=1.1.1.1"}, "198.51.100.7"),
        ("", {"X-Forwarded-For": "198.51.100.7"}, "198.51.100.7"),  # a Unix socket
        ("", {}, "unix"),
    ],
)
def test_the_client_is_who_a_trusted_peer_says(peer: str, headers: dict[str, str], client: str) -> None:
    request = make_mocked_request("GET", "/", headers=headers).clone(remote=peer)
    assert find_client_address(request, PROXIES) == client


def test_a_proxy_that_is_no_network_is_refused() -> None:
    with pytest.raises(ValueError, match=r"--trusted-proxy example\.org"):
        parse_networks(["10.0.0.1", "example.org"])

"""Who may speak to the gateway."""

import hashlib

import pytest

from terazi.errors import UsageError
from terazi.gateway.access import (
    Keyring,
    check_exposure,
    host_allowed,
    is_loopback,
    origin_allowed,
    presented_key,
    same_secret,
)
from terazi.gateway.call import Caller


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost", "LocalHost"])
def test_loopback_needs_no_key(host: str) -> None:
    assert is_loopback(host)
    check_exposure(host, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.10", "workstation", "localhost.example.org"])
def test_other_hosts_need_a_key(host: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_exposure(host, None)
    assert "key" in caught.value.hint
    with pytest.raises(UsageError):
        check_exposure(host, "")
    check_exposure(host, "secret")


@pytest.mark.parametrize("header", ["localhost", "localhost:8484", "127.0.0.1:8484", "[::1]:8484", "[::1]"])
def test_local_host_headers(header: str) -> None:
    assert host_allowed(header)


@pytest.mark.parametrize(
    "header",
    [None, "", "evil.example:8484", "127.0.0.1.evil.example", "localhost.evil.example:80", "[fe80::1]", "::1]"],
)
def test_foreign_host_headers(header: str | None) -> None:
    assert not host_allowed(header)


@pytest.mark.parametrize("origin", ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:8080"])
def test_local_origins(origin: str) -> None:
    assert origin_allowed(origin, ())


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "https://evil.example",
        "http://localhost.evil.example",
        "http://[::1",
        "file://",
        "ftp://localhost",
    ],
)
def test_foreign_origins(origin: str) -> None:
    assert not origin_allowed(origin, ())
    assert origin_allowed(origin, (origin,))


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({"Authorization": "Bearer k"}, "k"),
        ({"Authorization": "bearer k"}, "k"),
        ({"Authorization": "Basic k"}, ""),
        ({"x-api-key": "k"}, "k"),
        ({"Authorization": "Basic k", "x-api-key": "x"}, "x"),
        ({}, ""),
    ],
)
def test_where_the_key_is_read(headers: dict[str, str], key: str) -> None:
    assert presented_key(headers) == key


def test_secrets() -> None:
    assert same_secret("ä", "ä")
    assert not same_secret("", "k")
    assert not same_secret("\udcff", "k")


def test_each_key_has_its_holder_wherever_it_is_presented() -> None:
    ann, ben = Caller(name="ann", weight=2.0), Caller(name="ben")
    ring = Keyring({"key-of-ann": ann, "key-of-ben": ben})
    assert not ring.open
    assert ring.callers == (ann, ben)
    assert ring.caller({"Authorization": "Bearer key-of-ann"}) is ann
    assert ring.caller({"authorization": "Bearer key-of-ben"}) is ben
    assert ring.caller({"x-api-key": "key-of-ann"}) is ann
    for wrong in ("", "key-of-an", "key-of-annn", "KEY-OF-ANN", "\udcff"):
        assert ring.caller({"x-api-key": wrong}) is None
    assert ring.caller({}) is None


def test_a_key_holder_cannot_take_another_name() -> None:
    ring = Keyring({"key-of-ann": Caller(name="ann")})
    found = ring.caller({"x-api-key": "key-of-ann", "x-terazi-user": "somebody"})
    assert found is not None
    assert found.name == "ann"


@pytest.mark.parametrize(
    ("user", "name"),
    [
        ("", "local"),
        ("mum", "local/mum"),
        ("a.b_c@d+e-f", "local/a.b_c@d+e-f"),
        ("x" * 65, "local"),
        ("a\r\nb", "local"),
        ("a b", "local"),
        ("mum\n", "local"),
    ],
)
def test_without_keys_everybody_is_local_and_may_have_a_name(user: str, name: str) -> None:
    ring = Keyring()
    assert ring.open
    for spelling in ("x-terazi-user", "X-Terazi-User"):
        found = ring.caller({spelling: user, "x-api-key": "whatever"})
        assert found is not None
        assert found.name == name


def test_keys_may_come_as_digests_and_be_replaced_while_it_is_in_use() -> None:
    ann, ben = Caller(name="ann"), Caller(name="ben")
    ring = Keyring(digests={hashlib.sha256(b"key-of-ann").hexdigest(): ann})
    assert ring.caller({"x-api-key": "key-of-ann"}) is ann
    ring.replace({"key-of-ben": ben})
    assert ring.caller({"x-api-key": "key-of-ann"}) is None
    assert ring.caller({"x-api-key": "key-of-ben"}) is ben

"""Who may speak to the gateway."""

import pytest

from terazi.errors import UsageError
from terazi.gateway.access import (
    check_exposure,
    host_allowed,
    is_loopback,
    origin_allowed,
    presented_key,
    same_secret,
)


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

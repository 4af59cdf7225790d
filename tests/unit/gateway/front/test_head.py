"""Heads that mean one thing, and those that could mean two."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terazi.gateway.front.head import BadHeadError, RequestHead, find_end, read_head

HOST = b"Host: localhost\r\n"


def read(raw: bytes) -> RequestHead:
    """As a connection does."""
    return read_head(raw, most_headers=100)


def post(*lines: bytes, version: bytes = b"1.1") -> bytes:
    """A POST with these lines after its host."""
    return b"POST /v1/chat/completions HTTP/" + version + b"\r\n" + HOST + b"".join(lines) + b"\r\n"


def test_a_plain_head() -> None:
    head = read(
        b"POST /v1/x?a=b%20c HTTP/1.1\r\nHOST: localhost:8484\r\nX-Two: 1\r\nx-two: 2\r\nContent-Length: 3\r\n\r\n"
    )
    assert (head.method, head.path, head.query, head.length, head.old) == ("POST", "/v1/x", "a=b%20c", 3, False)
    assert head.fields == {"host": "localhost:8484", "x-two": "1, 2", "content-length": "3"}
    assert head.keep_alive
    assert not head.expects


@pytest.mark.parametrize(
    ("lines", "version", "keep_alive"),
    [
        ((), b"1.1", True),
        ((b"Connection: close\r\n",), b"1.1", False),
        ((), b"1.0", False),
        ((b"Connection: keep-alive\r\n",), b"1.0", True),
        ((b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n",), b"1.1", True),
    ],
)
def test_who_keeps_the_connection(lines: tuple[bytes, ...], version: bytes, keep_alive: bool) -> None:
    assert read(post(*lines, version=version)).keep_alive is keep_alive


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (post(b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"), 400),
        (post(b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"), 400),
        (post(b"Content-Length: 5\r\nContent-Length: 5\r\n"), 400),
        (post(b"Content-Length: 5\r\nContent-Length: 6\r\n"), 400),
        (post(b"Content-Length: 5, 5\r\n"), 400),
        (post(b"Content-Length: +5\r\n"), 400),
        (post(b"Content-Length: -5\r\n"), 400),
        (post(b"Content-Length: 0x5\r\n"), 400),
        (post(b"Content-Length: 5 5\r\n"), 400),
        (post(b"Content-Length: \r\n"), 400),
        (post(b"Content-Length: 99999999999999999999999\r\n"), 400),
        (post(b"Content-Length : 5\r\n"), 400),
        (post(b" Content-Length: 5\r\n"), 400),
        (post(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), 400),
        (post(b"Transfer-Encoding: gzip, chunked\r\n"), 400),
        (post(b"Transfer-Encoding: chunked, identity\r\n"), 400),
        (post(b"Transfer-Encoding: identity\r\n"), 400),
        (post(b"Transfer-Encoding: xchunked\r\n"), 400),
        (post(b"Transfer-Encoding:\x0bchunked\r\n"), 400),
        (post(b"Transfer-Encoding: chunked\r\n", version=b"1.0"), 400),
        (post(b"X: a\r\n b\r\n"), 400),
        (post(b"X: a\r\n\tContent-Length: 5\r\n"), 400),
        (post(b"X: a\nContent-Length: 5\r\n"), 400),
        (post(b"X: a\rContent-Length: 5\r\n"), 400),
        (post(b"X: a\0b\r\n"), 400),
        (post(b": a\r\n"), 400),
        (post(b"X\r\n"), 400),
        (post(b"Host: other\r\n"), 400),
        (post(b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n"), 400),
        (post(b"Expect: the unexpected\r\n"), 417),
        (post(b"X: a\r\n" * 200), 431),
        (b"POST / HTTP/1.1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a@b\r\n\r\n", 400),
        (b"POST  / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"POST /a b HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"POST / HTTP/1.1 \r\n" + HOST + b"\r\n", 400),
        (b"POST /\r\n" + HOST + b"\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"POST x HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"POST /#x HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"CONNECT a:443 HTTP/1.1\r\n" + HOST + b"\r\n", 405),
        (b"nonsense / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"POST / HTTP/2.0\r\n" + HOST + b"\r\n", 505),
        (b"POST / HTTP/3.7\r\n" + HOST + b"\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\n", 505),
        (b"POST http://me@localhost/ HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"POST http://localhost?x HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"HTTP/1.1 200 OK\r\n\r\n", 400),
    ],
)
def test_what_is_refused(raw: bytes, status: int) -> None:
    with pytest.raises(BadHeadError) as caught:
        read(raw)
    assert caught.value.status == status


def test_a_whole_url_counts_more_than_the_host() -> None:
    """Else a rebound name could come through the gate as the other's host."""
    head = read(b"POST http://rebound.example:80/v1/x?y HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (head.fields["host"], head.path, head.query) == ("rebound.example:80", "/v1/x", "y")
    assert read(b"GET HTTP://a HTTP/1.1\r\nHost: a\r\n\r\n").path == "/"


def test_it_is_written_anew_for_whoever_comes_after() -> None:
    raw = post(
        b"Transfer-Encoding: chunked\r\nConnection: X-Hop, keep-alive\r\nExpect: 100-continue\r\nUpgrade: h2c\r\n",
        b"Authorization: Bearer k\r\nX-Two: 1\r\nX-Two: 2\r\n",
    )
    forwarded = read(raw).forwarded(b"body")
    again = read(forwarded[: -len(b"body")])
    assert forwarded.endswith(b"\r\n\r\nbody")
    assert again.length == 4
    assert not again.keep_alive
    assert set(again.fields) == {"host", "authorization", "x-two", "content-length", "connection"}
    assert (again.fields["x-two"], again.path) == ("1, 2", "/v1/chat/completions")


@given(st.lists(st.binary(min_size=1, max_size=8), max_size=12), st.data())
def test_any_head_is_read_or_refused(parts: list[bytes], data: st.DataObject) -> None:
    """And what is read can be written and read again as the same."""
    known = st.sampled_from(
        [b"\r\n", b": ", b"Host", b"content-length", b"transfer-encoding", b"chunked", b"5", b"\n"]
    )
    raw = post(*parts, *data.draw(st.lists(known, max_size=12)))
    end = raw.find(b"\r\n\r\n") + 4
    try:
        head = read(raw[:end])
    except BadHeadError:
        return
    body = b"x" * 7
    again = read(head.forwarded(body).removesuffix(body))
    assert (again.method, again.path, again.query, again.length) == (head.method, head.path, head.query, 7)
    assert again.fields["host"] == head.fields["host"]


@given(st.binary(max_size=64), st.integers(min_value=1, max_value=7))
def test_where_a_head_is_cut_does_not_matter(tail: bytes, step: int) -> None:
    raw = post(b"X: a\r\n")
    whole, scanned, found = raw + tail, 0, None
    for upto in range(step, len(whole) + step, step):
        found = find_end(whole[:upto], scanned=scanned, most_bytes=1000)
        if found is not None:
            break
        scanned = min(upto, len(whole))
    assert found == len(raw)


def test_a_head_has_a_bound() -> None:
    assert find_end(b"POST / HT", scanned=0, most_bytes=100) is None
    for raw in (b"a" * 101, b"a" * 101 + b"\r\n\r\n"):
        with pytest.raises(BadHeadError) as caught:
            find_end(raw, scanned=0, most_bytes=100)
        assert caught.value.status == 431
    with pytest.raises(BadHeadError) as caught:
        find_end(b"POST / HTTP/1.1\nHost: x\n\n", scanned=0, most_bytes=100)
    assert caught.value.status == 400

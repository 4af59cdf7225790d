"""A head that is read by the pattern of the one before it is read as if it were the first."""

from hypothesis import given
from hypothesis import strategies as st

from terazi.gateway.front.head import BadHeadError, Pattern, RequestHead, read_head

FIELDS = st.sampled_from(
    [b"Host: localhost", b"Content-Type: application/json", b"Accept: */*", b"Authorization: Bearer k", b"x-a:"]
)
LENGTHS = st.sampled_from([b"Content-Length: %b", b"content-length:%b", b"CONTENT-LENGTH: \t%b \t"])
DIGITS = st.one_of(
    st.integers(0, 10**6).map(lambda n: b"%d" % n),
    st.sampled_from(
        [b"", b"+1", b"007", b"1 1", b"-0", b"1" * 18, b"1" * 19, b"\xb2", b"0x1", b"1\r\nA: b", b"1_0"]
    ),
)


@st.composite
def heads(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Two heads that differ in the digits of their lengths, and perhaps in a byte somewhere."""
    fields = [b"Host: h", *draw(st.lists(FIELDS.filter(lambda f: not f.startswith(b"Host")), unique=True))]
    at = draw(st.integers(0, len(fields)))
    length = draw(LENGTHS)

    def head(digits: bytes) -> bytes:
        lines = [b"POST /v1/chat/completions HTTP/1.1", *fields[:at], length % digits, *fields[at:]]
        return b"\r\n".join([*lines, b"", b""])

    first, second = head(b"%d" % draw(st.integers(0, 10**5))), head(draw(DIGITS))
    if draw(st.booleans()):
        place = draw(st.integers(0, len(second) - 1))
        second = second[:place] + draw(st.binary(max_size=2)) + second[place + draw(st.integers(0, 1)) :]
    return first, second


def read(raw: bytes) -> RequestHead | None:
    """None if it is refused."""
    try:
        return read_head(raw, most_headers=100)
    except BadHeadError:
        return None


@given(heads())
def test_a_pattern_reads_what_the_grammar_reads(both: tuple[bytes, bytes]) -> None:
    first, second = both
    known = read(first)
    assert known is not None
    pattern = Pattern.of(first, known)
    assert pattern is not None
    assert pattern.read(first) == known
    by_pattern = pattern.read(second)
    assert by_pattern is None or by_pattern == read(second)


def test_what_a_pattern_is_for() -> None:
    """And what there is none for."""
    first = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nA: b\r\n\r\n"
    pattern = Pattern.of(first, read_head(first, most_headers=9))
    assert pattern is not None
    found = pattern.read(first.replace(b"5", b"12345"))
    assert found is not None
    assert (found.length, found.fields["content-length"]) == (12345, "12345")
    assert pattern.read(first.replace(b"b", b"c")) is None
    for raw in (
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
        first.replace(b"A: b", b"A: " + b"b" * 3000),
    ):
        assert Pattern.of(raw, read_head(raw, most_headers=9)) is None

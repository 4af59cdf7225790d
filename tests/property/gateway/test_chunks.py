"""However an engine cuts its answer into chunks, and the network into reads: the same bytes come out, once."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from terazi.gateway.link import Link

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
#: Ways to write a chunk's size; the parser takes all of them.
SIZES = st.sampled_from([b"%x", b"%X", b"0%x", b"%x;a=b", b"000%x"])
TRICKY = [b"\r\n", b"0\r\n\r\n", b"data: x\n\n", b"5\r\nhello\r\n", b"a" * 300, b"\n", b"1", b"data: y\n\n\r\n"]
DATA = st.one_of(st.binary(min_size=1, max_size=40), st.sampled_from(TRICKY))


class Asker:
    """Sent a request, takes the answer."""

    over = False

    def __init__(self, link: Link) -> None:
        self.link = link
        self.parts: list[bytes] = []
        self.as_they_came = 0
        self.kept: list[bytes] = []
        self.most_bytes = 1 << 20
        self.ends: list[str] = []

    def began(self, status: int, content_type: str) -> None:
        """As ``Listener`` has it."""
        assert (status, content_type) == (200, "text/event-stream")

    def passed(self, raw: bytes) -> None:
        """One whole chunk: what goes to a client must be good HTTP, and the end of an event."""
        head, _, data = raw.partition(b"\r\n")
        assert int(head, 16) == len(data) - 2
        assert data.endswith(b"\n\n\r\n")
        assert b'"error"' not in data
        assert b'"tool_calls"' not in data
        self.as_they_came += 1
        self.parts.append(data[:-2])

    def came(self, data: bytes) -> None:
        """As ``Listener`` has it."""
        self.parts.append(data)
        self.link.bypass(self.passed, self.kept.append, self.most_bytes)

    def completed(self, *, reusable: bool) -> None:
        """As ``Listener`` has it."""
        self.ends.append("reusable" if reusable else "complete")
        self.over = True

    def broke(self, reason: str, *, silent: bool) -> None:
        """As ``Listener`` has it."""
        self.ends.append(reason)
        self.over = True


def answer(reads: list[bytes]) -> Asker:
    """What came of an answer in *reads*."""
    link = Link()
    asker = link.listener = Asker(link)
    for read in reads:
        link.data_received(read)
    return asker


@given(st.lists(st.tuples(SIZES, DATA), max_size=12), st.lists(st.integers(0, 2000), max_size=20))
def test_all_of_an_answer_comes_out_once(chunks: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    raw = HEAD + b"".join(size % len(data) + b"\r\n" + data + b"\r\n" for size, data in chunks) + b"0\r\n\r\n"
    places = [0, *sorted(cut for cut in cuts if cut < len(raw)), len(raw)]
    asker = answer([raw[a:b] for a, b in pairwise(places) if a < b])
    assert b"".join(asker.parts) == b"".join(data for _, data in chunks)
    assert asker.ends == ["reusable"]


EVENTS = st.sampled_from(
    [b"data: {%b}\n\n" % (b"x" * size) for size in (2, 30, 31, 200, 300, 5000)]
    + [
        b'data: {"error": 1}\n\n',
        b'data: {"delta": {"tool_calls": [{}]}}\n\n',
        b": ping, of a length that has been seen\n\n",
        b"data: half of an event, long",
    ]
)


@given(st.lists(EVENTS, min_size=2, max_size=20))
def test_events_that_come_alone_go_past_the_parser(events: list[bytes]) -> None:
    def chunk(data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data)

    plain = [b"data: " + b"y" * n + b"\n\n" for n in range(10, 600)]
    answer([HEAD, *map(chunk, plain)])  # so that their sizes are known
    asker = answer([HEAD, *map(chunk, events), b"0\r\n\r\n"])
    assert asker.parts == events
    assert asker.ends == ["reusable"]
    again = answer([HEAD, *map(chunk, plain[:20]), b"0\r\n\r\n"])
    assert again.parts == plain[:20]
    assert again.as_they_came == 19  # the first one tells that the parser stands between two chunks


def test_a_bypass_ends_with_its_bytes_and_may_begin_again() -> None:
    link = Link()
    asker = link.listener = Asker(link)
    asker.most_bytes = 100
    event = b"data: 0123456789012345\n\n"
    chunk = b"%x\r\n%b\r\n" % (len(event), event)
    for read in (HEAD, *[chunk] * 14):
        link.data_received(read)
    assert asker.parts == [event] * 14
    # one read to begin, three in 100 bytes, one to begin again
    assert asker.as_they_came == 10

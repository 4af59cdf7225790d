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
        self.ends: list[str] = []

    def began(self, status: int, content_type: str) -> None:
        """As ``Listener`` has it."""
        assert (status, content_type) == (200, "text/event-stream")
        self.link.on_chunk = self.chunk

    def chunk(self, raw: bytes, start: int) -> None:
        """One whole chunk: what goes to a client must be good HTTP."""
        data = raw[start:-2]
        assert int(raw[: start - 2], 16) == len(data)
        assert raw[start - 2 : start] == raw[-2:] == b"\r\n"
        self.as_they_came += 1
        self.parts.append(data)

    def came(self, data: bytes) -> None:
        """As ``Listener`` has it."""
        self.parts.append(data)

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


@given(st.lists(DATA, min_size=2, max_size=12))
def test_a_chunk_in_a_read_needs_no_parser(events: list[bytes]) -> None:
    asker = answer([HEAD, *(b"%x\r\n%b\r\n" % (len(data), data) for data in events), b"0\r\n\r\n"])
    assert asker.parts == events
    assert asker.as_they_came == len(events) - 1  # the first one tells that the parser stands between two chunks
    assert asker.ends == ["reusable"]

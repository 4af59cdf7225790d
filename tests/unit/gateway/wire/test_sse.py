"""The event reader."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from terazi.gateway.wire.sse import EventReader


def test_what_an_event_is() -> None:
    raw = b': ping\n\nevent: x\ndata: a\n\ndata:b\r\ndata: c\r\n\r\n\n\ndata: {"half'
    assert EventReader().feed(raw) == [b"a", b"b\nc"]


@given(
    st.lists(st.lists(st.sampled_from("a :dat{é世😀"), min_size=1).map("".join), max_size=8),
    st.sampled_from([b"\n", b"\r\n"]),
    st.data(),
)
def test_where_the_bytes_are_cut_does_not_matter(texts: list[str], end: bytes, data: st.DataObject) -> None:
    wanted = [text.encode() for text in texts]
    raw = b"".join(b"data: " + text + end + end for text in wanted)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=6)) | {0, len(raw)})
    reader = EventReader()
    found = [event for a, b in itertools.pairwise(cuts) for event in reader.feed(raw[a:b])]
    assert found == wanted

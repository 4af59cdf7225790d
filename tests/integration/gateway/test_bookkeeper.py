"""When ends of requests are worked off: together, before long, and before anybody looks."""

import asyncio
from dataclasses import replace

from serving import StubDirectory
from terazi.gateway.account import Bookkeeper, Entry, Outcome
from terazi.gateway.call import Call
from terazi.gateway.metrics import Metrics
from terazi.gateway.wire.errors import Api

CALL = Call(id="r1", api=Api.OLLAMA, path="/v1/completions", body=b"{}", model="m", stream=True, arrived=100.0)
DONE = Outcome(status=200, ended=101.0)


class Remembers:
    """A reader that says when it was told."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.told = asyncio.Event()

    def noted(self, entry: Entry) -> None:
        self.ids.append(entry.call.id)
        self.told.set()


async def test_ends_wait_for_each_other_and_none_is_lost() -> None:
    reader = Remembers()
    book = Bookkeeper([reader], wait_s=0.01)
    began = asyncio.get_running_loop().time()
    book.closed(CALL, DONE)
    book.closed(replace(CALL, id="r2"), DONE)
    assert not reader.ids
    await asyncio.wait_for(reader.told.wait(), 5)
    assert asyncio.get_running_loop().time() - began >= 0.009
    assert reader.ids == ["r1", "r2"]
    book.closed(replace(CALL, id="r3"), DONE)
    book.flush()
    book.flush()
    assert reader.ids == ["r1", "r2", "r3"]
    book.closed(replace(CALL, id="r4"), DONE)
    book.close()
    book.closed(replace(CALL, id="r5"), DONE)  # a client that was cut off in the very last moment
    assert reader.ids == ["r1", "r2", "r3", "r4", "r5"]


async def test_neither_many_nor_large_requests_are_kept_waiting() -> None:
    reader = Remembers()
    book = Bookkeeper([reader], wait_s=60)
    for number in range(300):
        book.closed(replace(CALL, id=str(number)), DONE)
    told = len(reader.ids)
    assert told > 200
    for number in range(300, 310):
        book.closed(replace(CALL, id=str(number), body=bytes(1 << 20)), DONE)
    assert len(reader.ids) >= 309
    book.close()
    assert reader.ids == [str(number) for number in range(310)]


async def test_a_scrape_counts_what_waits() -> None:
    metrics = Metrics(StubDirectory([]))
    book = Bookkeeper([metrics], wait_s=60)
    metrics.before = book.flush
    book.closed(CALL, DONE)
    assert b'terazi_requests_total{api="ollama",key="local",model="m",status="200"} 1.0' in metrics.text()
    book.close()

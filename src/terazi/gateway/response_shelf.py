"""Remembers the latest conversations of ``/v1/responses``, so that ``previous_response_id`` finds them.

In memory and bounded: a restart forgets them, and so does time. Ids are 96 random bits, so nobody finds another's.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from terazi.gateway.wire.responses_request import Item

_MOST: Final = 512
_MOST_BYTES: Final = 64 * 1024 * 1024


class ResponseShelf:
    """Conversations by the id of the response that ended them; the ones used longest ago go first.

    Args:
        most: conversations that are kept.
        most_bytes: characters of text in all of them, roughly their bytes.
    """

    def __init__(self, *, most: int = _MOST, most_bytes: int = _MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._held: OrderedDict[str, tuple[list[Item], int]] = OrderedDict()
        self._size = 0

    def put(self, response_id: str, items: Sequence[Item]) -> None:
        """Keep *items*; one that is larger than all the room is not kept."""
        size = sum(len(item.model_dump_json(exclude_none=True)) for item in items)
        self._held[response_id] = (list(items), size)
        self._size += size
        while self._held and (len(self._held) > self._most or self._size > self._most_bytes):
            _, (_, gone) = self._held.popitem(last=False)
            self._size -= gone

    def get(self, response_id: str) -> list[Item] | None:
        """What was kept, if it still is."""
        found = self._held.get(response_id)
        if found is None:
            return None
        self._held.move_to_end(response_id)
        return list(found[0])

"""Cuts a byte stream into the data of its server-sent events. Used where events are translated, not passed on."""


class EventReader:
    """Feed bytes as they come, get the data of each event that is complete.

    Comments, event names and ids are skipped; several ``data:`` lines of one event are joined by a newline, as
    the HTML standard's section on server-sent events says.
    """

    __slots__ = ("_data", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Data of the events that *chunk* completes."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        events: list[bytes] = []
        for raw in lines:
            line = raw.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
        return events

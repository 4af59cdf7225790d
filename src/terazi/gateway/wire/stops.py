"""Finds stop sequences in a text that comes in pieces.

An engine that stops at one doesn't say in its chat stream at which (llama-server b11434,
``to_json_oaicompat_chat``: ``finish_reason`` is ``stop`` for all). Where a client has to be told, the gateway looks
itself.
"""

from collections.abc import Sequence


class StopMatcher:
    """Feed pieces; get the text that surely comes before any stop sequence.

    ``matched`` is the sequence that was found; nothing is given out after it.
    """

    __slots__ = ("_held", "_stops", "matched")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """What can be given out after *text* has come."""
        if self.matched is not None:
            return ""
        held = self._held + text
        # the one that is complete first wins, and of those that end together the longest
        ends = [(at + len(stop), -len(stop), stop) for stop in self._stops if (at := held.find(stop)) >= 0]
        if ends:
            end, _, self.matched = min(ends)
            self._held = ""
            return held[: end - len(self.matched)]
        keep = max((_overlap(held, stop) for stop in self._stops), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """What was held back, when no more comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of *text* that is a beginning of *stop*, shorter than it."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-n:])), 0)

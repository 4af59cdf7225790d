"""What a client may cost before it is shown the door."""

from dataclasses import dataclass

from terazi.gateway.desk import STALL_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one connection.

    Args:
        head_bytes, headers: of a request's head; what is more gets a 431.
        head_s: from the first byte of a head to its last.
        idle_s: between requests. Longer than clients keep their connections, so that it is they who close.
        body_s, body_bytes_per_s: a body may take so long, and longer by what this pace takes for what has come.
        stall_s: how long a client may take nothing of an answer that waits for it.
        linger_s: how long the rest of a refused request is read, so that its answer isn't lost in a reset.
        ahead_bytes: of further requests that are kept while one is answered.
    """

    head_bytes: int = 32 * 1024
    headers: int = 100
    head_s: float = 10.0
    idle_s: float = 300.0
    body_s: float = 20.0
    body_bytes_per_s: float = 4096.0
    stall_s: float = STALL_S
    linger_s: float = 2.0
    ahead_bytes: int = 64 * 1024

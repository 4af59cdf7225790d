"""llama-server's files of a slot's state (``--slot-save-path``): asking for them, and which prompt is in one.

A restore that answers 200 may still have brought back nothing that is used: models whose cache can't be cut at a
token, such as those with a sliding window, begin anew all the same. Only ``cache_n`` of an answer to the very
prompt tells (``server-context.cpp:handle_slots_restore``, b11434).
"""

import json
import struct
from typing import Final

#: A shorter prompt is read again sooner than its state is brought back.
LEAST_TOKENS: Final = 128
_MAGIC: Final = 0x67677371  # LLAMA_STATE_SEQ_MAGIC, "ggsq"
_STATE_VERSION: Final = 1  # SERVER_TOKENS_STATE_VERSION
_HEAD: Final = struct.Struct("<IIIiII")
#: Enough of a file for the longest prompt that is asked about.
HEAD_BYTES: Final = _HEAD.size + 4 * 262_144


def slot_request(slot: int, action: str, filename: str) -> tuple[str, str]:
    """Path and body of a POST; *action* is ``save`` or ``restore``."""
    return f"/slots/{slot}?action={action}", json.dumps({"filename": filename})


def tokens_moved(answer: str | None) -> int:
    """Tokens that a save or a restore says it has moved; 0 if it failed."""
    found = _object(answer)
    n = found.get("n_saved", found.get("n_restored", 0))
    return n if isinstance(n, int) else 0


def tokens_in(head: bytes) -> tuple[int, ...] | None:
    """The prompt in a slot's file, of which *head* is the beginning; None if it isn't all text, or can't be read.

    The layout: ``llama-context.cpp:state_seq_save_file`` around ``server-common.cpp:server_tokens::serialize``
    (b11434); older builds wrote the tokens alone.
    """
    if len(head) < _HEAD.size:
        return None
    magic, _, packed, mark, version, n = _HEAD.unpack_from(head)
    if magic != _MAGIC:
        return None
    if mark == -1 and version == _STATE_VERSION:
        start = _HEAD.size
    else:
        start, n = 12, packed
    if len(head) < start + 4 * n:
        return None
    tokens = struct.unpack_from(f"<{n}i", head, start)
    return None if any(token < 0 for token in tokens) else tokens


def reuse_request(slot: int, tokens: tuple[int, ...]) -> tuple[str, str]:
    """Path and body of a request that only reads *tokens* in *slot*: it costs one token if they are there."""
    body = {"prompt": list(tokens), "id_slot": slot, "n_predict": 0, "cache_prompt": True, "temperature": 0}
    return "/completion", json.dumps(body)


def tokens_reused(answer: str | None) -> int:
    """``cache_n`` of an answer; 0 if there is none."""
    timings = _object(answer).get("timings")
    n = timings.get("cache_n") if isinstance(timings, dict) else None
    return n if isinstance(n, int) else 0


def _object(text: str | None) -> dict[str, object]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}

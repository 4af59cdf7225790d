"""Asks the Hugging Face hub what a repository holds: one request, its answer bounded in bytes and in time.

``HfApi.model_info`` asks the same, but takes whatever comes: a server behind ``HF_ENDPOINT`` that never stops fills
the memory.
"""

import re
import time
from typing import Final, NamedTuple
from urllib.parse import quote

import httpx2
from huggingface_hub import constants, get_session, get_token

from terazi.errors import SourceError
from terazi.models.bounded_json import parse_object
from terazi.models.hub import HubReference
from terazi.models.sources.remote import refused

#: The longest known listings (some 10,000 files) have about 1 MB.
LISTING_LIMIT_BYTES: Final = 16 * 1024**2
#: Seconds that the hub may be silent, and that one listing may take however slowly it trickles in.
SILENCE_S: Final = 20.0
DEADLINE_S: Final = 60.0
_COMMIT: Final = re.compile(r"[\w.\-]{1,96}", re.ASCII)
_HINT: Final = "Try again later, or name the file: hf:org/repo:file.gguf"


class Listing(NamedTuple):
    """The repository's files in the hub's order, and the commit that they are of."""

    names: list[str]
    commit: str | None


def credentials() -> dict[str, str]:
    """The header that the hub, and no other host, may see; none without a token."""
    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    return {"authorization": f"Bearer {token}"} if token else {}


def list_repository(reference: HubReference) -> Listing:
    """What the hub says that *reference* holds. Names that no file could have are left out.

    Raises:
        SourceError: the hub says no, or says too much or too slowly.
        ModelFileError: its answer is no listing.
        Exception: whatever the library or its transport raises if the hub can't be asked.
    """
    at = f"/revision/{quote(reference.revision, safe='')}" if reference.revision else ""
    url = f"{constants.ENDPOINT}/api/models/{reference.repository}{at}"
    # identity: a packed answer could unpack to any size
    headers = {**credentials(), "accept-encoding": "identity"}
    deadline = time.monotonic() + DEADLINE_S
    with get_session().stream(
        "GET", url, headers=headers, timeout=httpx2.Timeout(SILENCE_S), follow_redirects=True
    ) as response:
        if response.status_code != httpx2.codes.OK:
            raise refused(response.status_code, response.headers, str(reference))
        body = bytearray()
        for chunk in response.iter_raw():
            body += chunk
            if len(body) > LISTING_LIMIT_BYTES or time.monotonic() > deadline:
                much = "a list of more than 16 MiB" if len(body) > LISTING_LIMIT_BYTES else "its list too slowly"
                raise SourceError(f"{reference}: the server sends {much}.", hint=_HINT)
    document = parse_object(bytes(body), str(reference), what="the hub's list of files")
    siblings, commit = document.get("siblings"), document.get("sha")
    entries = siblings if isinstance(siblings, list) else []
    names = [entry.get("rfilename") for entry in entries if isinstance(entry, dict)]
    return Listing(
        [name for name in names if isinstance(name, str) and _is_file_name(name)],
        commit if isinstance(commit, str) and _COMMIT.fullmatch(commit) else None,
    )


def _is_file_name(name: str) -> bool:
    return bool(name) and name.isprintable() and not name.startswith("/") and ".." not in name.split("/")

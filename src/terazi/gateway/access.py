"""Who may speak to the gateway: pure checks of addresses, hosts, origins and keys.

Without an API key the service is for this machine only, and two doors that a web page could use are shut:
a foreign ``Host`` (DNS rebinding: a name of the attacker's that resolves to 127.0.0.1) and a foreign ``Origin``
(a page elsewhere that posts to localhost). With a key both are open, since no page knows the key.
"""

import hashlib
import hmac
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from terazi.errors import UsageError
from terazi.gateway.backend import Directory
from terazi.gateway.call import Caller
from terazi.gateway.wire.errors import Fault, WireError

#: Who asks, on a service without keys.
LOCAL: Final = Caller()
#: The header in which the users of a keyless service may give themselves names.
USER_HEADER: Final = "X-Terazi-User"
_USER: Final = re.compile(r"[A-Za-z0-9._@+-]{1,64}")


def is_loopback(host: str) -> bool:
    """Whether *host* is this machine alone: ``localhost`` or a loopback address; other names aren't resolved."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, keyed: str | bool | None) -> None:  # noqa: FBT001 - a key itself says it, too
    """Refuse to serve other machines without a key.

    Raises:
        UsageError: *host* is reachable from elsewhere and there is no key.
    """
    if not keyed and not is_loopback(host):
        shown = host or "all addresses"
        raise UsageError(
            f"serving on {shown} would let anybody on the network use the models",
            hint="set an API key (--api-key or TERAZI_API_KEY), or serve on 127.0.0.1",
        )


def host_name(header: str) -> str:
    """The name in a ``Host`` header, without port and brackets."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


@lru_cache(maxsize=256)
def host_allowed(header: str | None) -> bool:
    """Whether a keyless service answers to this ``Host``."""
    return header is not None and is_loopback(host_name(header))


def origin_allowed(origin: str, allowed: Collection[str]) -> bool:
    """Whether a page of *origin* may use the service: pages of this machine, and those of *allowed*."""
    if origin in allowed:
        return True
    try:
        parts = urlsplit(origin)
        return parts.scheme in {"http", "https"} and is_loopback(parts.hostname or "")
    except ValueError:
        return False


def presented_key(headers: Mapping[str, str]) -> str:
    """The key a client sent, as ``Authorization: Bearer KEY`` or ``x-api-key: KEY``; empty if none.

    *headers* is either case-insensitive or has names in lower case.
    """
    given = headers.get("authorization") or headers.get("Authorization") or ""
    scheme, _, key = given.partition(" ")
    if scheme.lower() == "bearer" and key:
        return key.strip()
    return headers.get("x-api-key", "")


def same_secret(given: str, expected: str) -> bool:
    """Compare in a time that doesn't tell how much was right."""
    return hmac.compare_digest(_digest(given), _digest(expected))


def may_use(caller: Caller, model: str, directory: Directory) -> bool:
    """Whether *caller*'s key is for *model* (its id): a key names its models by any name that finds them."""
    if caller.models is None or model in caller.models:
        return True
    found = (directory.find(name) for name in caller.models)
    return any(served is not None and served.card.id == model for served in found)


def model_denied(caller: Caller, model: str) -> WireError:
    """403: the key isn't for this model."""
    message = f"the key of {caller.name} may not use '{model}'"
    return WireError(Fault(status=403, message=message, kind="permission_error", code="model_not_allowed"))


class Keyring:
    """Who holds which key.

    A presented key is compared with every key that there is, by digests of equal length, so that the time it takes
    tells neither which key came closest nor how long one is. The keys themselves aren't kept.

    Args:
        keys: each key with its holder.
        digests: the same, by the SHA-256 of each key in hexadecimal. With neither, everybody on this machine may.

    Attributes:
        open: no key is needed.
        edition: another object when the keys are others.
    """

    def __init__(
        self, keys: Mapping[str, Caller] | None = None, *, digests: Mapping[str, Caller] | None = None
    ) -> None:
        self._holders: tuple[tuple[bytes, Caller], ...] = ()
        self.open = True
        self.edition = object()
        self.replace(keys, digests=digests)

    def replace(
        self, keys: Mapping[str, Caller] | None = None, *, digests: Mapping[str, Caller] | None = None
    ) -> None:
        """These are the keys from now on."""
        holders = [(_digest(key), holder) for key, holder in (keys or {}).items()]
        holders += [(bytes.fromhex(digest), holder) for digest, holder in (digests or {}).items()]
        self._holders = tuple(holders)
        self.open = not holders
        self.edition = object()

    @property
    def callers(self) -> tuple[Caller, ...]:
        """All holders of keys."""
        return tuple(holder for _, holder in self._holders)

    def caller(self, headers: Mapping[str, str]) -> Caller | None:
        """Who asks; None if a key is needed and this isn't one.

        On an open service everybody is ``local``, or ``local/NAME`` if the client says ``X-Terazi-User: NAME``
        (letters, digits and ``. _ @ + -``, at most 64; anything else is not looked at). So a household shares one
        machine fairly without keys. It is no protection: whoever wants a larger share may take two names. With
        keys the header means nothing, for a holder could multiply its share by it.
        """
        if not self._holders:
            name = headers.get("x-terazi-user") or headers.get(USER_HEADER) or ""
            return _guest(name) if name and _USER.fullmatch(name) else LOCAL
        given = _digest(presented_key(headers))
        found: Caller | None = None
        for digest, holder in self._holders:
            if hmac.compare_digest(digest, given):
                found = holder
        return found


@lru_cache(maxsize=256)
def _guest(name: str) -> Caller:
    return Caller(name=f"local/{name}")


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()

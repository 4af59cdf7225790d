"""Who may speak to the gateway: pure checks of addresses, hosts, origins and keys.

Without an API key the service is for this machine only, and two doors that a web page could use are shut:
a foreign ``Host`` (DNS rebinding: a name of the attacker's that resolves to 127.0.0.1) and a foreign ``Origin``
(a page elsewhere that posts to localhost). With a key both are open, since no page knows the key.
"""

import hmac
from collections.abc import Collection, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from terazi.errors import UsageError


def is_loopback(host: str) -> bool:
    """Whether *host* is this machine alone: ``localhost`` or a loopback address; other names aren't resolved."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, api_key: str | None) -> None:
    """Refuse to serve other machines without a key.

    Raises:
        UsageError: *host* is reachable from elsewhere and there is no *api_key*.
    """
    if not api_key and not is_loopback(host):
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
    """The key a client sent, as ``Authorization: Bearer KEY`` or ``x-api-key: KEY``; empty if none."""
    scheme, _, key = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key:
        return key.strip()
    return headers.get("x-api-key", "")


def same_secret(given: str, expected: str) -> bool:
    """Compare in a time that doesn't tell how much was right."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode())

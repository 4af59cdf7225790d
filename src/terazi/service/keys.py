"""From ``[[keys]]`` to the callers that the gateway knows: by the SHA-256 of each key, never by the key."""

import hashlib
from collections.abc import Mapping

from terazi.errors import UsageError
from terazi.gateway.call import Caller
from terazi.service.config import Config

#: The caller behind ``service.api_key``, ``--api-key`` and ``TERAZI_API_KEY``.
EVERYBODY = "default"


def callers(config: Config, environ: Mapping[str, str], *, api_key: str | None = None) -> dict[str, Caller]:
    """``{SHA-256 of a key, in lower-case hexadecimal: its holder}``; empty if no key is needed.

    Args:
        config: whose keys they are.
        environ: where ``key_env`` is looked up.
        api_key: the one key for everybody, if it was given besides; else ``service.api_key``.

    Raises:
        UsageError: a variable that should hold a key doesn't, or two keys are the same.
    """
    found: dict[str, Caller] = {}
    everybody = api_key or config.service.key()
    if everybody:
        found[hashlib.sha256(everybody.encode()).hexdigest()] = Caller(name=EVERYBODY)
    for key in config.keys:
        digest = key.digest(environ)
        if digest in found:
            raise UsageError(
                f"{key.name!r} and {found[digest].name!r} have the same key",
                hint="give each holder a key of its own",
            )
        found[digest] = Caller(
            name=key.name,
            weight=key.weight,
            priority=key.priority,
            max_concurrent=key.max_concurrent,
            tokens_per_minute=key.tokens_per_minute,
            max_queued=key.max_queued,
            models=None if key.models is None else frozenset(key.models),
        )
    return found

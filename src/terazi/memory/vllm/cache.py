"""One layer's cache on one rank: bytes of a page, tokens of a block, pages that a sequence needs.

The classes ``FullAttentionSpec``, ``SlidingWindowSpec``, ``ChunkedLocalAttentionSpec``, ``MLAAttentionSpec`` and
``MambaSpec`` of ``v1/kv_cache_interface.py``, vLLM 0.32.0, as one noun.
"""

from dataclasses import dataclass, replace

from terazi.memory.vllm.model import CacheKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the pages of a sequence depend on.

    Args:
        max_model_len: tokens.
        in_flight_tokens: tokens that may be scheduled and not yet settled.
        aligned_states: recurrent states are kept at block boundaries (``mamba_cache_mode`` is ``align``).
        guessed_tokens: of speculative decoding.
    """

    max_model_len: int
    in_flight_tokens: int
    aligned_states: bool = False
    guessed_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """A layer's cache. Two layers with equal ones can share a block table.

    Args:
        block_size: tokens of one block.
        token_bytes: bytes of a token in one layer on this rank; 0 for a state.
        state_bytes: of a recurrent layer.
        window: of a sliding window or chunk.
        checkpoints: states that a recurrent layer keeps besides, where prefixes are cached.
        padded_bytes: bytes of a page if it is padded, else None.
        shape: heads, key and value sizes: pages of equal bytes and unequal shape are no equal caches.
    """

    kind: CacheKind
    block_size: int
    token_bytes: int = 0
    state_bytes: int = 0
    window: int = 0
    checkpoints: int = 0
    padded_bytes: int | None = None
    shape: tuple[int, ...] = ()

    @property
    def page_bytes(self) -> int:
        """Bytes of one block in one layer."""
        return self.padded_bytes or self.natural_bytes

    @property
    def natural_bytes(self) -> int:
        """Bytes of one block without padding."""
        return self.state_bytes or self.token_bytes * self.block_size

    def pages_of_a_sequence(self, limits: Limits) -> int:
        """Pages that a sequence of the full length holds at most: ``max_memory_usage_bytes`` over the page."""
        if self.kind is CacheKind.STATE:
            return (2 + self.checkpoints if limits.aligned_states else 1) + limits.guessed_tokens
        if self.kind is CacheKind.SLIDING:
            tokens = min(self.window - 1 + limits.in_flight_tokens, limits.max_model_len)
            return _blocks(tokens, self.block_size) + 1  # the window may begin inside a block
        if self.kind is CacheKind.CHUNKED:
            return _blocks(min(self.window + limits.in_flight_tokens, limits.max_model_len), self.block_size)
        return _blocks(limits.max_model_len, self.block_size)

    def promoted(self) -> "CacheSpec":
        """This window as full attention: every token keeps its block."""
        return replace(self, kind=CacheKind.FULL, window=0) if self.kind in _LOCAL else self

    def with_page(self, page_bytes: int) -> "CacheSpec | None":
        """This cache with pages of *page_bytes*: larger blocks if they divide it, padding otherwise.

        None if neither is allowed (``unify_kv_cache_spec_page_size``).
        """
        if self.page_bytes == page_bytes:
            return self
        if self.kind is CacheKind.STATE:
            return replace(self, padded_bytes=page_bytes)
        if page_bytes % self.page_bytes == 0:
            return replace(self, block_size=self.block_size * (page_bytes // self.page_bytes))
        if self.kind is not CacheKind.LATENT:
            return replace(self, padded_bytes=page_bytes)
        return None

    def grows_like(self, other: "CacheSpec") -> bool:
        """Whether both always need the same number of blocks (``is_uniform_type``)."""
        if self.block_size != other.block_size:
            return False
        full = {CacheKind.FULL, CacheKind.LATENT}
        if self.kind in full:
            return other.kind in full
        if self.kind is CacheKind.STATE:
            return other.kind is CacheKind.STATE and self.page_bytes == other.page_bytes
        return other.kind is self.kind and other.window == self.window


_LOCAL = frozenset({CacheKind.SLIDING, CacheKind.CHUNKED})


def _blocks(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)

"""From bytes to blocks and tokens: how vLLM groups caches of several kinds, which share one pool of blocks.

In: the caches of every layer, where each layer lies, bytes for each pipeline stage. Out: ``KvPool``. Redoes
``get_kv_cache_groups``, ``get_kv_cache_configs`` and ``get_kv_cache_capacity`` of ``v1/core/kv_cache_utils.py``,
vLLM 0.32.0, for layouts that keep each layer apart (every backend's first choice on CPU, CUDA and ROCm).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from terazi.memory.vllm.cache import CacheSpec, Limits


class Placed(NamedTuple):
    """A cache and the layer that it belongs to. A layer may have two."""

    layer: int
    spec: CacheSpec


class Group(NamedTuple):
    """Layers that share one block table. ``pages_bytes`` are the pages of one block, layer by layer."""

    members: tuple[Placed, ...]

    def block_bytes(self, layers: range) -> int:
        """Bytes of one block on the pipeline stage that has *layers*."""
        return sum(p.spec.page_bytes for p in self.members if p.layer in layers)

    def blocks_of_a_sequence(self, limits: Limits) -> int:
        """Blocks that one sequence of full length takes of the pool."""
        return max(p.spec.pages_of_a_sequence(limits) for p in self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPool:
    """The KV cache of an engine.

    Args:
        blocks: of the pool, the same on every rank; 0 if there is no room for one.
        block_bytes: bytes of one block on each pipeline stage.
        blocks_per_sequence: of one sequence of ``max_model_len``.
        tokens: what vLLM reports as its size: sequences of full length that fit, times that length.
        concurrency: sequences of full length at once.
        max_model_len: what it was planned for; with ``--max-model-len auto`` what fits.
        longest: tokens of the longest sequence that fits (``estimated maximum model length``); 0 if none does.
        fits: whether one sequence of ``max_model_len`` fits.
        needed_bytes, checked_bytes: of the stage where it doesn't fit: what a sequence needs, and what there is
            beside the block that vLLM holds back.
    """

    blocks: int
    block_bytes: tuple[int, ...]
    blocks_per_sequence: int
    tokens: int
    concurrency: float
    max_model_len: int
    longest: int
    fits: bool
    needed_bytes: int
    checked_bytes: int
    groups: tuple[Group, ...] = ()


class MixedPagesError(ValueError):
    """The pages of these layers can't be made equal; vLLM refuses such a model."""


def plan_pool(
    caches: Sequence[Placed],
    stages: Sequence[range],
    available: Sequence[int],
    limits: Limits,
    *,
    one_table: bool = False,
    override_blocks: int | None = None,
    fit_length: bool = False,
) -> KvPool:
    """The pool that *available* bytes for the cache on each of *stages* (a rank of each) make.

    Args:
        caches: of all layers on a rank, in the order of the layers.
        stages: layers of each pipeline stage.
        available: bytes for the cache, of the rank with the least on each stage.
        limits: with the model's full length.
        one_table: without the hybrid manager: windows keep every block.
        override_blocks: ``--num-gpu-blocks-override``.
        fit_length: ``--max-model-len auto``.

    Raises:
        MixedPagesError: vLLM can't group these layers.
    """
    groups = group_caches(caches, one_table=one_table)
    block_bytes = tuple(max((g.block_bytes(stage) for g in groups), default=0) for stage in stages)
    held = [n for n in block_bytes if n]
    if not held:  # no cache at all
        return _empty(limits, block_bytes)
    if override_blocks is not None:
        available = [override_blocks * n for n in block_bytes]
    blocks = min(have // n for have, n in zip(available, block_bytes, strict=True) if n)
    # one block is held back as the null block: the check plans without it, the pool is made with it
    checked = [have - n for have, n in zip(available, block_bytes, strict=True)]
    usable = min(have // n for have, n in zip(checked, block_bytes, strict=True) if n)
    longest = _longest(groups, limits, usable)
    if fit_length and 0 < longest < limits.max_model_len:
        limits = replace(limits, max_model_len=longest)
    per_sequence = sum(g.blocks_of_a_sequence(limits) for g in groups)
    short = min(range(len(checked)), key=lambda i: checked[i] // block_bytes[i] if block_bytes[i] else 2**62)
    concurrency = max(0, blocks) / per_sequence
    return KvPool(
        blocks=max(0, blocks),
        block_bytes=block_bytes,
        blocks_per_sequence=per_sequence,
        tokens=int(concurrency * limits.max_model_len),
        concurrency=concurrency,
        max_model_len=limits.max_model_len,
        longest=longest,
        fits=checked[short] > 0 and per_sequence <= usable,
        needed_bytes=per_sequence * block_bytes[short],
        checked_bytes=checked[short],
        groups=groups,
    )


def _empty(limits: Limits, block_bytes: tuple[int, ...]) -> KvPool:
    return KvPool(
        blocks=1,
        block_bytes=block_bytes,
        blocks_per_sequence=0,
        tokens=0,
        concurrency=0.0,
        max_model_len=limits.max_model_len,
        longest=limits.max_model_len,
        fits=True,
        needed_bytes=0,
        checked_bytes=0,
    )


def _longest(groups: Sequence[Group], limits: Limits, usable: int) -> int:
    """``_estimate_max_model_len_from_groups``: the longest sequence whose blocks are in the pool, by bisection."""

    def fits(length: int) -> bool:
        shorter = replace(limits, max_model_len=length)
        return sum(g.blocks_of_a_sequence(shorter) for g in groups) <= usable

    if not fits(1):
        return 0
    low, high = 1, limits.max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def group_caches(caches: Sequence[Placed], *, one_table: bool = False) -> tuple[Group, ...]:
    """Layers by block table: ``get_kv_cache_groups``.

    Raises:
        MixedPagesError: pages of different sizes can't be made equal.
    """
    if not caches:
        return ()
    if one_table:
        caches = _promoted(caches)
    first = caches[0].spec
    if all(p.spec == first for p in caches) or all(p.spec.grows_like(first) for p in caches):
        return (Group(tuple(caches)),)
    return _equal_groups(_equal_pages(caches))


def _promoted(caches: Sequence[Placed]) -> list[Placed]:
    """``unify_hybrid_kv_cache_specs``: windows beside full attention keep every block."""
    kinds = {p.spec.kind for p in caches}
    if len(kinds) == 1:
        return list(caches)
    return [Placed(p.layer, p.spec.promoted()) for p in caches]


def _equal_pages(caches: Sequence[Placed]) -> list[Placed]:
    largest = max(p.spec.page_bytes for p in caches)
    equal: list[Placed] = []
    for placed in caches:
        spec = placed.spec.with_page(largest)
        if spec is None:
            raise MixedPagesError("pages of latent attention can't be padded to those of other layers")
        equal.append(Placed(placed.layer, spec))
    return equal


def _equal_groups(caches: Sequence[Placed]) -> tuple[Group, ...]:
    """``_get_kv_cache_groups_uniform_page_size``: as many layers in each group as the rarest kind has."""
    buckets: dict[CacheSpec, list[Placed]] = {}
    for placed in caches:
        buckets.setdefault(placed.spec, []).append(placed)
    sizes: Mapping[CacheSpec, int] = {spec: len(members) for spec, members in buckets.items()}
    fewest, most = min(sizes.values()), max(sizes.values())
    size = most if most < fewest * 1.5 else fewest
    groups: list[Group] = []
    for members in buckets.values():
        count = -(-len(members) // size)
        groups += [Group(tuple(members[i::count])) for i in range(count)]
    return tuple(groups)

"""Speculative decoding as a llama.cpp command line states it: which kinds, how many tokens, what the draft gets.

Sources, b11434: ``common/common.h`` (defaults), ``common/speculative.cpp`` (kinds, ``common_speculative_n_max``,
``need_n_rs_seq``), ``common/ngram-map.h`` and ``ngram-mod.cpp`` (what the tables of n-grams hold).
"""

from dataclasses import dataclass
from typing import Final

#: Kinds that run a context of their own.
DRAFT_KINDS: Final = frozenset({"draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark"})
#: Kinds that look tokens up in what was said before.
NGRAM_KINDS: Final = frozenset({"ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"})
#: All that ``--spec-type`` takes besides ``none``.
KINDS: Final = DRAFT_KINDS | NGRAM_KINDS
#: Kinds that go back in a recurrent state, which is then kept once more for each drafted token.
_GOING_BACK: Final = DRAFT_KINDS - {"draft-simple"}
#: Tokens that ``ngram-cache`` drafts (``create_state_ngram_cache``).
_CACHE_TOKENS: Final = 8
#: Bytes: 4 Mi entries of 32 bits, shared by all slots (``common_speculative_impl_ngram_mod``).
_MOD_BYTES: Final = 4 * 4 * 1024 * 1024
#: Bytes a slot: ``COMMON_NGRAM_HASH_MAP_SIZE`` entries of 32 bits (``common_ngram_map``).
_MAP_BYTES: Final = 4 * 262144
#: Bytes a token of the context: a ``common_ngram_map_key`` of 88 in a vector that doubles (old and new at once).
_MAP_TOKEN_BYTES: Final = 3 * 88
#: Bytes a token: n-grams of one to four tokens, each with a node (96), a map of what follows (a node of 32, 13
#: buckets in 112) and up to three places in the table of all (``common_ngram_cache``, libstdc++).
_CACHE_TOKEN_BYTES: Final = 4 * (96 + 32 + 112 + 24)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How tokens are guessed ahead. The draft's own settings count only where there is a draft model.

    Args:
        kinds: ``--spec-type``; None if nothing was said (then the draft's file may say), empty for ``none``.
        n_max: ``--spec-draft-n-max``, tokens that a draft guesses at once.
        backend_sampling: ``--spec-draft-backend-sampling``: the draft's tokens are picked on its device.
        n_gpu_layers: ``-ngld``; None is the engine's default, whatever ``-ngl`` says.
        devices: ``-devd``; empty follows ``-dev``, ``("none",)`` is the CPU alone.
        type_k, type_v: ``-ctkd``, ``-ctvd``: cache types of the draft, and of a model's own draft head.
        override_tensor: ``-otd`` pairs of (regular expression, buffer type).
        cpu_moe, n_cpu_moe: ``--cpu-moe-draft``, ``--n-cpu-moe-draft``.
        ngram_simple_m, ngram_map_k_m, ngram_map_k4v_m: ``--spec-ngram-…-size-m``, tokens that each kind guesses.
        ngram_mod_n_max: ``--spec-ngram-mod-n-max``, the same of ``ngram-mod``.
    """

    kinds: tuple[str, ...] | None = None
    n_max: int = 3
    backend_sampling: bool = True
    n_gpu_layers: int | None = None
    devices: tuple[str, ...] = ()
    type_k: str = "f16"
    type_v: str = "f16"
    override_tensor: tuple[tuple[str, str], ...] = ()
    cpu_moe: bool = False
    n_cpu_moe: int = 0
    ngram_simple_m: int = 48
    ngram_map_k_m: int = 48
    ngram_map_k4v_m: int = 48
    ngram_mod_n_max: int = 64

    def uses(self, kind: str) -> bool:
        """Whether *kind* was asked for."""
        return kind in (self.kinds or ())

    @property
    def drafted(self) -> int:
        """Tokens that are checked at once besides the sampled one (``common_speculative_n_max``)."""
        guessed = {
            "ngram-simple": self.ngram_simple_m,
            "ngram-map-k": self.ngram_map_k_m,
            "ngram-map-k4v": self.ngram_map_k4v_m,
            "ngram-mod": self.ngram_mod_n_max,
            "ngram-cache": _CACHE_TOKENS,
        }
        return max((guessed.get(kind, self.n_max) for kind in self.kinds or ()), default=0)

    @property
    def states_back(self) -> int:
        """Recurrent states that are kept to go back to (``need_n_rs_seq``), where the architecture can."""
        return self.n_max if _GOING_BACK & set(self.kinds or ()) else 0


#: What a command says that says nothing about it.
NO_SPECULATION: Final = Speculation()


def ngram_bytes(speculation: Speculation, slots: int) -> dict[str, int]:
    """Host memory that the tables of each n-gram kind take at once, by kind."""
    sizes = {"ngram-mod": _MOD_BYTES, "ngram-map-k": slots * _MAP_BYTES, "ngram-map-k4v": slots * _MAP_BYTES}
    return {kind: sizes[kind] for kind in dict.fromkeys(speculation.kinds or ()) if kind in sizes}


def ngram_growth_bytes(speculation: Speculation, cells: int) -> dict[str, int]:
    """What the tables may come to hold at most over *cells* tokens of all slots together, by kind."""
    each = {
        "ngram-map-k": _MAP_TOKEN_BYTES,
        "ngram-map-k4v": _MAP_TOKEN_BYTES,
        "ngram-cache": _CACHE_TOKEN_BYTES,
    }
    return {kind: cells * each[kind] for kind in dict.fromkeys(speculation.kinds or ()) if kind in each}

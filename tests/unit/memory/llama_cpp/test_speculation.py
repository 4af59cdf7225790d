"""How many tokens are checked at once, and what tables of n-grams hold."""

import pytest

from terazi.memory.llama_cpp.speculation import KINDS, Speculation, ngram_bytes, ngram_growth_bytes
from terazi.units import MIB


@pytest.mark.parametrize(
    ("kinds", "tokens"),
    [
        (None, 0),
        ((), 0),
        (("draft-simple",), 3),
        (("ngram-cache",), 8),
        (("ngram-simple",), 48),
        (("ngram-mod", "draft-mtp"), 64),
        (("draft-dflash", "ngram-map-k"), 48),
    ],
)
def test_the_longest_draft_counts(kinds: tuple[str, ...] | None, tokens: int) -> None:
    """The defaults of ``common.h``; a server of 4 slots says n_outputs_max = 4 (1 + tokens)."""
    assert Speculation(kinds=kinds).drafted == tokens


def test_only_drafts_that_read_hidden_states_go_back() -> None:
    going = {kind for kind in KINDS if Speculation(kinds=(kind,), n_max=5).states_back == 5}
    assert going == {"draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark"}


def test_tables_are_per_slot_or_for_all() -> None:
    every = Speculation(kinds=tuple(sorted(KINDS)))
    assert ngram_bytes(every, 3) == {"ngram-map-k": 3 * MIB, "ngram-map-k4v": 3 * MIB, "ngram-mod": 16 * MIB}
    twice = Speculation(kinds=("ngram-mod", "ngram-mod"))
    assert ngram_bytes(twice, 8) == {"ngram-mod": 16 * MIB}
    assert set(ngram_growth_bytes(every, 4096)) == {"ngram-cache", "ngram-map-k", "ngram-map-k4v"}

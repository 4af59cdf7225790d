"""Any projector's header, however mangled, is weighed or refused with a sentence, in bounded time."""

from collections.abc import Mapping
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

import projector_twins as twins
from gguf_writer import TensorRow
from specs import card, smollm2
from terazi.errors import TeraziError
from terazi.memory.bill import Bill
from terazi.memory.llama_cpp.bill import weigh
from terazi.memory.llama_cpp.settings import LlamaCppSettings

#: Prepared once: drawing starts from these.
TWINS = {name: build() for name, build in twins.TWINS.items()}
MODEL = smollm2()
NUMBERS = st.sampled_from([0, 1, 2, 3, 5, 16, 63, 1000, 2**20, 2**31 - 1, -1])


class Mangled(NamedTuple):
    keys: Mapping[str, object]
    rows: list[TensorRow]


@st.composite
def mangled(draw: st.DrawFn) -> Mangled:
    keys, rows = TWINS[draw(st.sampled_from(sorted(TWINS)))]
    changed = dict(keys)
    numbers = sorted(key for key, value in keys.items() if isinstance(value, int))
    for key in draw(st.lists(st.sampled_from(numbers), max_size=3)):
        changed[key] = draw(NUMBERS)
    missing = draw(st.sets(st.integers(0, len(rows) - 1), max_size=2))
    kept = [row for i, row in enumerate(rows) if i not in missing]
    if draw(st.booleans()):
        other, _ = TWINS[draw(st.sampled_from(sorted(TWINS)))]
        changed["clip.projector_type"] = other["clip.projector_type"]
    return Mangled(changed, kept)


@given(mangled(), st.sampled_from(["auto", "off"]), st.booleans())
@settings(max_examples=150)
def test_a_mangled_projector_is_weighed_or_refused(twin: Mangled, flash_attn: str, on_card: bool) -> None:
    devices = (card(),) if on_card else ()
    wanted = LlamaCppSettings(n_ctx=256, flash_attn=flash_attn, n_gpu_layers=0)
    try:
        bill = weigh(MODEL, wanted, devices, frozenset(), (twins.companion((twin.keys, twin.rows)),))
    except TeraziError:
        return
    assert isinstance(bill, Bill)
    assert all(line.bytes >= 0 for line in (*bill.lines, *bill.growth))

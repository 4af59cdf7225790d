"""What a changed configuration means for what is served."""

import pytest

from terazi.memory.workload import Workload
from terazi.service.config import Config, parse_config
from terazi.service.reload import change_of
from terazi.service.wish import Wish, wish_of


def config(text: str) -> Config:
    return parse_config(text.encode(), "terazi.toml")


BASE = Wish(source="/a.gguf", name="a", workload=Workload(context=2048))


def changed(**fields: object) -> Wish:
    from dataclasses import replace

    return replace(BASE, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wish", "what"),
    [
        (changed(), "nothing"),
        (changed(aliases=("b",)), "retermed"),
        (changed(pinned=True), "retermed"),
        (changed(idle_s=5.0), "retermed"),
        (changed(priority=3), "retermed"),
        (changed(replicas=(0, 1)), "retermed"),
        (changed(replicas=(1, 2)), "restarted"),
        (changed(source="/b.gguf"), "restarted"),
        (changed(workload=Workload(context=4096)), "restarted"),
        (changed(pins={"n_gpu_layers": 3}), "restarted"),
        (changed(quant="Q4_0"), "restarted"),
        (changed(name="b"), "replaced"),
    ],
)
def test_only_what_an_engine_is_started_with_restarts_it(wish: Wish, what: str) -> None:
    change = change_of({"a": BASE}, (wish,))

    assert change.empty == (what == "nothing")
    assert bool(change.restarted) == (what == "restarted")
    assert bool(change.retermed) == (what == "retermed")
    assert (change.removed == ("a",)) == (what == "replaced")
    assert (change.added == (wish,)) == (what == "replaced")


def test_a_model_without_a_name_is_known_by_its_source() -> None:
    served = {"x-Q4": Wish(source="/x-Q4.gguf"), "y": Wish(source="/y.gguf")}
    change = change_of(served, (Wish(source="/x-Q4.gguf", idle_s=1.0), Wish(source="/z.gguf")))

    assert change.retermed == (("x-Q4", Wish(source="/x-Q4.gguf", idle_s=1.0)),)
    assert change.removed == ("y",)
    assert change.added == (Wish(source="/z.gguf"),)


def test_a_table_says_what_is_wished() -> None:
    (table,) = config(
        '[[models]]\nsource = "demo"\n[models.settings]\ncontext = 256\nkv_type = "q8_0"\ngpu_layers = 2'
    ).models

    wish = wish_of(table)

    assert wish.workload.context == 256
    assert wish.workload.prompt + wish.workload.output <= 256, "the usual lengths give way"
    assert wish.pins == {"type_k": "q8_0", "type_v": "q8_0", "n_gpu_layers": 2}

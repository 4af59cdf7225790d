"""Projectors of served models: found or named, weighed, told to clients. They are twins with real headers."""

from pathlib import Path

import pytest

import projector_twins
from demo_files import smollm2
from terazi.errors import UsageError
from terazi.service.cards import make_card
from terazi.service.config import Config
from terazi.service.planning import Planned, plan_together, settle
from terazi.service.weigh import find_machine
from terazi.service.wish import Wish, wish_of

MACHINE = "RTX 3090 + 32GiB ddr4"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The demo model under its own name, alone in a folder."""
    path = tmp_path / smollm2().name
    path.symlink_to(smollm2())
    return path


def twin(folder: Path, name: str, called: str) -> Path:
    """A projector's file as it is called on the hub."""
    return projector_twins.write_twin(folder, name).rename(folder / called)


def planned(model: Path, mmproj: str | None = None) -> Planned:
    """What becomes of it."""
    (one,) = plan_together([Wish(source=str(model), mmproj=mmproj)], find_machine(MACHINE)).planned
    return one


def capabilities(one: Planned) -> tuple[str, ...]:
    """What its clients are told that it can."""
    card = make_card(one.weighing.spec, one.plan, alias="m", projector=one.weighing.projector)
    return card.capabilities


def test_the_one_beside_the_model_is_billed_and_told(model: Path) -> None:
    blind = planned(model)
    path = twin(model.parent, "gemma3", "mmproj-SmolLM2-135M-Instruct-F16.gguf")
    seeing = planned(model)
    assert seeing.weighing.projector is not None
    assert seeing.weighing.projector.files[0].path == str(path) == seeing.wish.mmproj
    beside = [line for line in seeing.plan.bill.lines if line.part == "mmproj"]
    assert sum(line.bytes for line in beside) >= 500_000
    assert {line.device for line in beside} >= {"CUDA0"}
    assert sum(share.beside_bytes for share in seeing.plan.devices) == sum(line.bytes for line in beside)
    assert seeing.plan.bill.total_bytes > blind.plan.bill.total_bytes
    assert seeing.plan.id != blind.plan.id
    assert set(capabilities(seeing)) - set(capabilities(blind)) == {"vision"}


def test_one_that_is_named_may_lie_anywhere_and_none_leaves_it_out(model: Path, tmp_path: Path) -> None:
    twin(model.parent, "gemma3", "mmproj-F16.gguf")
    (tmp_path / "elsewhere").mkdir()
    ears = twin(tmp_path / "elsewhere", "voxtral", "ears.gguf")
    assert set(capabilities(planned(model, str(ears)))) >= {"audio"}
    assert "vision" not in capabilities(planned(model, str(ears)))
    without = planned(model, "none")
    assert without.weighing.companions == ()
    assert not {"vision", "audio"} & set(capabilities(without))


def test_another_models_is_not_taken_by_itself_and_refused_if_it_is_named(model: Path) -> None:
    wide = twin(model.parent, "minicpmv", "mmproj-F16.gguf")  # of a model of 640 values; this one takes 576
    assert planned(model).weighing.companions == ()
    with pytest.raises(UsageError, match="640"):
        planned(model, str(wide))
    with pytest.raises(UsageError, match="must be here"):
        planned(model, "hf:org/repo:mmproj-F16.gguf")


def test_the_configuration_names_it_and_a_change_of_it_starts_the_engine_anew(model: Path) -> None:
    path = twin(model.parent, "gemma3", "mmproj-F16.gguf")

    def wished(**settings: str) -> Wish:
        table = {"source": str(model), "settings": settings}
        return settle(wish_of(Config.model_validate({"models": [table]}).models[0]))

    assert wished().mmproj == wished(mmproj=str(path)).mmproj == str(path)
    assert wished().same_engine(wished(mmproj=str(path)))
    assert not wished().same_engine(wished(mmproj="none"))

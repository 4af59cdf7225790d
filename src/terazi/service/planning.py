"""Plans many models for one machine: all together if they fit, else each for itself beside the pinned ones."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from terazi.errors import RefusedError, UsageError
from terazi.hardware.machine import Machine
from terazi.models.hub import is_remote
from terazi.models.sources import load_model
from terazi.placement.plan import Plan, Refusal
from terazi.placement.together import left_by
from terazi.service.cards import model_id
from terazi.service.projectors import settle_projector
from terazi.service.request import weigh_request
from terazi.service.several import weigh_several
from terazi.service.weighing import Weighing
from terazi.service.wish import Wish


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What came of one wish; the name it goes by is settled."""

    wish: Wish
    name: str
    weighing: Weighing
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    """All of them in the order of the wishes. ``together``: they all fit at once."""

    planned: tuple[Planned, ...]
    together: bool
    reason: str = ""


def settle(wish: Wish) -> Wish:
    """*wish* with the one file that its quantisation names, and with the file of its projector.

    Raises:
        UsageError: it isn't clear which file, or there is none.
        ModelFileError: the model can't be read.
    """
    return settle_projector(settle_source(wish))


def settle_source(wish: Wish) -> Wish:
    """*wish* with the one file that its quantisation names, if its source is a folder.

    Raises:
        UsageError: no file of the folder has that quantisation, or several do.
    """
    folder = Path(wish.source)
    if wish.quant is None or not folder.is_dir():
        if wish.quant is not None and wish.source.startswith("hf:") and wish.source.count(":") == 1:
            return replace(wish, source=f"{wish.source}:{wish.quant}")
        return wish
    tag = re.compile(rf"(^|[-._]){re.escape(wish.quant)}([-._]|$)", re.IGNORECASE)
    files = sorted(f for f in folder.glob("*.gguf") if tag.search(f.stem))
    parts = [f for f in files if re.search(r"-0*[2-9]\d*-of-\d+$|-0*1\d+-of-\d+$", f.stem)]
    files = [f for f in files if f not in parts]
    if len(files) != 1:
        found = ", ".join(f.name for f in files) or "none"
        raise UsageError(
            f"{wish.source} should have one file of {wish.quant}, and has: {found}", hint="name the file itself"
        )
    return replace(wish, source=str(files[0]))


def plan_together(wishes: Sequence[Wish], machine: Machine, *, price_per_kwh: float | None = None) -> Planning:
    """Plan *wishes* on *machine*, which is what may be used of the real one.

    Raises:
        ModelFileError, UsageError: one can't be read, isn't here, or two would answer to one name.
        RefusedError: one doesn't fit even alone beside the pinned ones.
    """
    wishes = [settle(wish) for wish in wishes]
    names = _names(wishes)
    requests = [wish.request(machine, price_per_kwh=price_per_kwh) for wish in wishes]
    if len(wishes) > 1:
        several = weigh_several(requests)
        outcomes = [w.outcome for w in several.weighings]
        if all(isinstance(outcome, Plan) for outcome in outcomes):
            return Planning(
                planned=tuple(
                    _planned(wish, name, weighing)
                    for wish, name, weighing in zip(wishes, names, several.weighings, strict=True)
                ),
                together=True,
                reason=several.reason,
            )
    pinned = [i for i, wish in enumerate(wishes) if wish.pinned]
    found: dict[int, Planned] = {}
    for i in pinned:
        found[i] = _planned(wishes[i], names[i], weigh_request(replace(requests[i], machine=machine)))
        machine = left_by(machine, found[i].plan.devices)
    for i, wish in enumerate(wishes):
        if i not in found:
            found[i] = _planned(wish, names[i], weigh_request(replace(requests[i], machine=machine)))
    alone = "" if len(wishes) == 1 else "They don't all fit at once: each is loaded when it is asked for."
    return Planning(planned=tuple(found[i] for i in range(len(wishes))), together=len(wishes) == 1, reason=alone)


def plan_one(wish: Wish, name: str, machine: Machine, *, price_per_kwh: float | None = None) -> Planned:
    """Plan *wish* alone on *machine*.

    Raises:
        ModelFileError, UsageError, RefusedError: as ``plan_together``.
    """
    return _planned(wish, name, weigh_request(wish.request(machine, price_per_kwh=price_per_kwh)))


def check_fits(wish: Wish, machine: Machine) -> None:
    """Weigh *wish*, which may be elsewhere: only its header is read.

    Raises:
        ModelFileError, UsageError, SourceError: it can't be read.
        RefusedError: it doesn't fit *machine*.
    """
    weighing = weigh_request(wish.request(machine))
    if isinstance(weighing.outcome, Refusal):
        raise _refused(weighing, weighing.outcome, "would not fit")


def _names(wishes: Sequence[Wish]) -> list[str]:
    """Looks at all headers before anything starts: a mistake in the last model shall not cost a load."""
    names = [wish.name or model_id(load_model(wish.source)) for wish in wishes]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"two models are called {twice!r}", hint="name each once, or rename one of the files")
    return names


def _planned(wish: Wish, name: str, weighing: Weighing) -> Planned:
    check_startable(weighing)
    outcome = weighing.outcome
    if isinstance(outcome, Refusal):
        raise _refused(weighing, outcome, "was not started")
    return Planned(wish=wish, name=name, weighing=weighing, plan=outcome)


def _refused(weighing: Weighing, refusal: Refusal, what: str) -> RefusedError:
    nearest = refusal.alternatives[0].change if refusal.alternatives else "a smaller model"
    return RefusedError(f"{weighing.spec.name} {what}: {refusal.reason}", hint=f"try {nearest}")


def check_startable(weighing: Weighing) -> None:
    """Refuse, before anything is launched, what the engine can't open.

    Raises:
        UsageError: the model's files are elsewhere, or of a format that llama.cpp doesn't load.
    """
    spec = weighing.spec
    if any(is_remote(file.path) for file in spec.files):
        raise UsageError(
            f"{spec.origin} was weighed from its header, but to run it must be here.",
            hint="Download it first, e.g. with: hf download ORG/REPO FILE.gguf --local-dir .",
        )
    if spec.format != "gguf":
        raise UsageError(
            f"{spec.name} is no GGUF model, and llama.cpp loads no other.",
            hint="Get it as a .gguf file, or convert it with llama.cpp's convert_hf_to_gguf.py.",
        )

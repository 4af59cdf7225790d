"""Plans a running model again with less memory: a shorter context, fewer layers on the card, a smaller file."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from terazi.errors import TeraziError
from terazi.hardware.machine import Machine
from terazi.memory.bill import HOST
from terazi.memory.settings import llama_cpp_settings
from terazi.models.sources import load_model
from terazi.placement.capacity import capacity_of
from terazi.service.planning import Planned, plan_one
from terazi.service.room import needs_of, with_room
from terazi.service.wish import Wish

_SHARES = (0.75, 0.5, 0.25)
#: What a model gives of what it holds, if it can't give all that is asked for.
_GIVEN = (0.5, 0.25, 0.1)
_LEAST_CONTEXT = 1024
_MOST_FILES = 64


def smaller(
    planned: Planned, machine: Machine, need: Mapping[str, int], *, price_per_kwh: float | None = None
) -> tuple[Planned, str] | None:
    """*planned* with *need* bytes less on each device, and what is different about it; None if there is none.

    Tried in this order: the same layers with a shorter context; fewer layers on the cards; a smaller file of the
    same model in the same folder. The first that fits is taken, since the later ones cost more. Where *need* is
    more than the model can give, it gives a half, a quarter or a tenth of what it holds there.

    Args:
        machine: as it is now, with the model in memory.
    """
    held = needs_of(planned.plan.devices, planned.weighing.machine)
    short = {device: n for device, n in need.items() if held.get(device)}
    capacity = capacity_of(machine)
    free = {HOST: capacity.host_bytes, **capacity.device_bytes}
    for share in (None, *_GIVEN):
        cuts = {d: n if share is None else int(held[d] * share) for d, n in short.items()}
        if not cuts or any(cut > short[d] or cut >= held[d] for d, cut in cuts.items()):
            continue
        room = {device: n + held.get(device, 0) for device, n in free.items()}
        room |= {device: held[device] - cut for device, cut in cuts.items()}
        for wish, change in _candidates(planned, need):
            try:
                found = plan_one(wish, planned.name, with_room(machine, room), price_per_kwh=price_per_kwh)
            except TeraziError:
                continue
            now = needs_of(found.plan.devices, found.weighing.machine)
            if all(now.get(device, 0) <= room[device] for device in cuts):
                return replace(found, wish=planned.wish), change(found)
    return None


class _Say:
    """A sentence about a plan that came of a change."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __call__(self, found: Planned) -> str:
        return self._text.format(context=found.plan.workload.context, file=found.weighing.spec.name)


def _candidates(planned: Planned, need: Mapping[str, int]) -> Iterator[tuple[Wish, _Say]]:
    wish, plan = planned.wish, planned.plan
    context = plan.workload.context
    layers = llama_cpp_settings(plan.settings).n_gpu_layers
    same_layers = replace(wish, pins={**wish.pins, **({} if layers is None else {"n_gpu_layers": layers})})
    for share in _SHARES:
        if context is not None and (shorter := int(context * share) // 256 * 256) >= _LEAST_CONTEXT:
            yield _with_context(same_layers, shorter), _Say("a context of {context} tokens")
    if any(device != HOST for device in need) and "n_gpu_layers" not in wish.pins:
        for share in (1.0, *_SHARES):
            if context is not None and (shorter := int(context * share)) >= min(context, _LEAST_CONTEXT):
                yield _with_context(wish, shorter), _Say("fewer layers on the card, {context} tokens of context")
    for file in _smaller_files(planned):
        yield replace(wish, source=file, quant=None), _Say("the smaller file {file}, {context} tokens of context")


def _with_context(wish: Wish, context: int) -> Wish:
    workload = wish.workload
    output = min(workload.output, context // 4)
    prompt = min(workload.prompt, context - output)
    return replace(wish, workload=replace(workload, context=context, prompt=prompt, output=output))


def _smaller_files(planned: Planned) -> Iterator[str]:
    """Other files of the same model beside it, the largest first."""
    spec = planned.weighing.spec
    if len(spec.files) != 1:
        return
    here = Path(spec.files[0].path)
    found = []
    for path in sorted(here.parent.glob("*.gguf"))[:_MOST_FILES]:
        if path == here or path.stat().st_size >= here.stat().st_size:
            continue
        try:
            other = load_model(str(path))
        except TeraziError:
            continue
        same = (other.architecture, other.parameter_count, other.context_length) == (
            spec.architecture,
            spec.parameter_count,
            spec.context_length,
        )
        if same and len(other.files) == 1:
            found.append((other.file_bytes, str(path)))
    for _, name in sorted(found, reverse=True):
        yield name

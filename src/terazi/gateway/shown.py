"""Which names the lists of models show, the same in all APIs, each once.

A served model is shown by its id. A name that a client pulled, copied or created is a model of its own, as in
Ollama: it may have defaults, and clients that pick from a list must find it there. The aliases of the configuration
are not: they are for clients that know a name already, and stand beside the model in its own entry.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from terazi.gateway.backend import ModelCard, Served, bare_name
from terazi.gateway.library import Library, Preset


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One entry of a list.

    Args:
        card: under the name that is shown, without the aliases that are shown themselves.
        base: the model that answers.
        preset: what the name is, if it isn't the model's own.
    """

    card: ModelCard
    base: ModelCard
    preset: Preset | None = None


def shown(listed: tuple[Served, ...], library: Library | None, find: Callable[[str], Served | None]) -> list[Shown]:
    """The entries: the models of *listed*, then the names of the library that lead to one of them.

    A name that was created over the model's own takes its place.
    """
    named: dict[str, Shown] = {}
    for preset in () if library is None else (*library.pulled(), *library.presets()):
        base = find(preset.base)
        if base is not None and base in listed:
            named[bare_name(preset.name)] = _named(preset, base.card)
    own = [
        Shown(
            card=replace(model.card, aliases=tuple(a for a in model.card.aliases if bare_name(a) not in named)),
            base=model.card,
        )
        for model in listed
        if bare_name(model.card.id) not in named
    ]
    return [*own, *named.values()]


def shown_as(name: str, found: Served, library: Library | None) -> Shown:
    """The entry of the one model that *name* found."""
    names = () if library is None else (*library.presets(), *library.pulled())
    preset = next((p for p in names if bare_name(p.name) == bare_name(name) and p.base == found.card.id), None)
    return Shown(card=found.card, base=found.card) if preset is None else _named(preset, found.card)


def _named(preset: Preset, base: ModelCard) -> Shown:
    created = int(datetime.fromisoformat(preset.modified).timestamp())
    card = replace(base, id=bare_name(preset.name), aliases=(), created_s=created, modified=preset.modified)
    return Shown(card=card, base=base, preset=preset)

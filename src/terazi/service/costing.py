"""``terazi cost``: weighs a model on the own machine and on those that can be rented, and prices a month of each.

A rented machine is weighed like any other, with as many of its cards as the model needs, and the engine's settings
chosen for it: so hours are turned into tokens by the same forecast on both sides.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final

from terazi.errors import RefusedError, TeraziError, UsageError
from terazi.hardware.machine import Machine
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec
from terazi.performance.cost import Comparison, Own, Rented, Volume, compare
from terazi.performance.energy import HOURS_PER_MONTH, PowerReport
from terazi.performance.phases import request_mix
from terazi.performance.prices import Prices, RentOffer
from terazi.placement.plan import Verdict
from terazi.service.power import PowerTerms, to_json, with_power
from terazi.service.weigh import weigh_model
from terazi.service.weighing import Weighing

SCHEMA: Final = "terazi.cost/1"
#: How many cards a rented machine may have.
_COUNTS: Final = (1, 2, 4, 8)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CostTerms:
    """What is to be compared.

    Args:
        power: tariff, supply, and the share of the month that the own machine works.
        prices: cards and hosted offers.
        mtok: million tokens a month, in and out together; None takes *power.duty* instead.
        hardware: what the own machine cost; None sums its cards.
        months, residual: of the depreciation.
    """

    power: PowerTerms
    prices: Prices
    mtok: float | None = None
    hardware: float | None = None
    months: int = 36
    residual: float = 0.2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CostReport:
    """A comparison with what it rests on."""

    weighing: Weighing
    comparison: Comparison
    power: PowerReport | None


def cost_report(
    argument: str,
    machine: Machine,
    workload: Workload,
    pins: Mapping[str, object],
    terms: CostTerms,
    *,
    engine: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> CostReport:
    """Weigh, forecast and price.

    Raises:
        UsageError, ModelFileError: the model or a setting is wrong.
        RefusedError: it doesn't fit the own machine, and no volume was given for the others.
    """
    weighing = with_power(weigh_model(argument, machine, workload, pins, engine=engine), terms.power)
    if weighing.plan is None and terms.mtok is None:
        raise RefusedError(
            f"{weighing.spec.name} doesn't fit {machine.name}, so there is no duty to price",
            hint="give a volume, to price the alternatives alone: --mtok 100",
        )
    own_s = _request_s(weighing)
    if own_s is None and terms.mtok is None:
        raise UsageError(
            "there is no forecast for this engine here, so a duty says no volume", hint="give one: --mtok 100"
        )
    used = weighing.workload
    per_request = max(1, used.prompt) + max(1, used.output)
    requests = (
        terms.power.duty * HOURS_PER_MONTH * 3600 / own_s
        if terms.mtok is None and own_s is not None
        else (terms.mtok or 0.0) * 1e6 / per_request
    )
    volume = Volume(requests=requests, prompt=max(1, used.prompt), output=max(1, used.output))
    rented, left_out = _rented(weighing, pins, engine, terms.prices, progress)
    spec = weighing.spec
    names = (spec.name, spec.origin, spec.files[0].path if spec.files else "", argument)
    apis = terms.prices.apis_for(*names)
    if not apis:
        left_out.append(f"per-token APIs: no price of {spec.name} is known here; add yours with --prices")
    own, words = _own(weighing, terms, own_s)
    comparison = compare(
        volume,
        own,
        rented,
        apis,
        currency=terms.prices.currency,
        left_out=left_out,
    )
    comparison = dataclasses.replace(comparison, notes=(*comparison.notes, *words))
    return CostReport(weighing=weighing, comparison=comparison, power=weighing.power)


def _request_s(weighing: Weighing) -> float | None:
    if weighing.forecast is None:
        return None
    mix = request_mix(weighing.workload, weighing.forecast)
    return mix.prompt_s + mix.decode_s


def _own(weighing: Weighing, terms: CostTerms, request_s: float | None) -> tuple[Own, tuple[str, ...]]:
    power = weighing.power
    known = power is not None and request_s is not None
    price, words = terms.hardware, ""
    if price is None:
        price, words = _card_prices(weighing.machine, terms.prices)
    own = Own(
        price=price,
        residual=terms.residual,
        months=terms.months,
        idle_w=power.idle_wall_w.mid if power is not None else 0.0,
        work_w=power.work_wall_w.mid if power is not None else 0.0,
        request_s=request_s or 0.0,
        per_kwh=terms.power.tariff.per_kwh if known else None,
    )
    return own, (words,) if words else ()


def _card_prices(machine: Machine, prices: Prices) -> tuple[float | None, str]:
    """All cards of the machine and where that is from, or None where one has no price."""
    found = {d.name: prices.card(d.name) for d in machine.devices}
    known = {name: price for name, price in found.items() if price is not None}
    if not found or len(known) < len(found):
        return None, ""
    dates = "; ".join(f"{name} {p.price:,.0f}, {p.note}, as of {p.date}" for name, p in known.items())
    total = sum(known[d.name].price for d in machine.devices)
    return total, f"own hardware: its cards alone, {total:,.0f} ({dates}); say what you paid with --hardware-price"


def _rented(
    weighing: Weighing,
    pins: Mapping[str, object],
    engine: str | None,
    prices: Prices,
    progress: Callable[[str], None],
) -> tuple[list[Rented], list[str]]:
    """Each offer with the fewest cards that hold the model whole; one forecast serves all offers of a card."""
    rented: list[Rented] = []
    left_out: list[str] = []
    cards = dict.fromkeys((offer.card, offer.gpus) for offer in prices.rents)
    for card, least in cards:
        progress(f"weighing on {card}")
        offers = [o for o in prices.rents if (o.card, o.gpus) == (card, least)]
        found = _fewest(weighing, card, least, pins, engine)
        if isinstance(found, str):
            left_out.append(f"{', '.join(o.provider for o in offers)}: {found}")
            continue
        rented += [dataclasses.replace(found, offer=offer) for offer in offers]
    return rented, left_out


def _fewest(
    weighing: Weighing, card: str, least: int, pins: Mapping[str, object], engine: str | None
) -> Rented | str:
    from terazi.hardware.presets import parse_machine
    from terazi.hardware.probe import load_catalogue

    catalogue = load_catalogue()
    record = catalogue.find(card)
    workload = weighing.workload
    needed = weighing.spec.weights_bytes
    for count in (n for n in _COUNTS if n >= least):
        if count * record.memory_max_bytes < needed:
            continue
        joined = " nvlink" if count > 1 and record.nvlink_bytes_per_s is not None else ""
        machine = parse_machine(f"{count}x {card}{joined} + 256GiB ddr5 8-channel", catalogue)
        try:
            found = _weigh_spec(weighing.spec, machine, workload, pins, engine or weighing.outcome.bill.engine)
        except TeraziError as error:
            return error.message
        if found.plan is None or found.plan.verdict is not Verdict.FITS:
            continue
        seconds = _request_s(found)
        if seconds is None or found.forecast is None:
            return "no forecast for this engine"
        placeholder = RentOffer(provider="", kind="", card=card, per_gpu_hour=0.0, date="", source="")
        return Rented(
            offer=placeholder,
            gpus=count,
            request_s=seconds,
            throughput_tok_s=found.forecast.throughput_tok_s.mid,
        )
    return f"{_COUNTS[-1]} × {card} don't hold it"


def _weigh_spec(
    spec: ModelSpec, machine: Machine, workload: Workload, pins: Mapping[str, object], engine: str
) -> Weighing:
    if engine == "vllm":
        from terazi.service import weigh_vllm

        return weigh_vllm.weigh_spec(spec, machine, workload, pins)
    from terazi.memory.llama_cpp.layers import ALL_LAYERS
    from terazi.service import weigh_llama_cpp

    # nobody rents a card to leave layers in RAM
    pins = {"n_gpu_layers": ALL_LAYERS, **pins}
    return weigh_llama_cpp.weigh_spec(spec, machine, workload, pins, price_per_kwh=None)


def to_document(report: CostReport) -> dict[str, Any]:
    """The report as one JSON document."""
    comparison = report.comparison
    return {
        "schema": SCHEMA,
        "model": report.weighing.spec.name,
        "machine": report.weighing.machine.name,
        "workload": dataclasses.asdict(report.weighing.workload),
        "plan": None if report.weighing.plan is None else report.weighing.plan.id,
        "volume": {
            **dataclasses.asdict(comparison.volume),
            "tokens_in": comparison.volume.tokens_in,
            "tokens_out": comparison.volume.tokens_out,
        },
        "currency": comparison.currency,
        "own": None if comparison.own is None else dataclasses.asdict(comparison.own),
        "hosted": [dataclasses.asdict(option) for option in comparison.hosted],
        "left_out": list(comparison.left_out),
        "notes": list(comparison.notes),
        "power": None if report.power is None else to_json(report.power),
    }

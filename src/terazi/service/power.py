"""Watts and money for a weighing: what its owner said of tariff and supply, put to the core.

The configuration is looked at only where there is something to report, since reading it costs start-up time.
"""

import dataclasses
from typing import Any

from terazi.performance.energy import PowerReport, Tariff, power_report, times
from terazi.performance.host_power import Supply
from terazi.performance.outlook import Forecast
from terazi.service.config import Config
from terazi.service.weighing import Weighing


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PowerTerms:
    """What is known of tariff and supply, typed or configured."""

    tariff: Tariff
    supply: Supply
    duty: float


def power_terms(
    config: Config,
    *,
    price_per_kwh: float | None = None,
    currency: str | None = None,
    psu_w: float | None = None,
    duty: float | None = None,
) -> PowerTerms:
    """What was typed, over what is configured."""
    table = config.power
    return PowerTerms(
        tariff=Tariff(
            per_kwh=table.price_per_kwh if price_per_kwh is None else price_per_kwh,
            currency=currency or table.currency,
        ),
        supply=Supply(
            psu_w=psu_w or table.psu_w,
            atx3=table.psu_atx3,
            efficiency=table.psu_efficiency,
            host_idle_w=table.host_idle_w,
            host_load_w=table.host_load_w,
        ),
        duty=duty or table.duty,
    )


def with_power(weighing: Weighing, terms: PowerTerms) -> Weighing:
    """*weighing* with its power report, or with a note why there is none."""
    if weighing.plan is None or weighing.forecast is None:
        return weighing
    found = power_report(
        weighing.spec,
        weighing.plan,
        weighing.machine,
        weighing.workload,
        weighing.forecast,
        supply=terms.supply,
        tariff=terms.tariff,
        duty=terms.duty,
    )
    if isinstance(found, str):
        return weighing  # the forecast's basis says so already
    return dataclasses.replace(weighing, power=found, forecast=_priced(weighing.forecast, terms.tariff))


def _priced(said: Forecast, tariff: Tariff) -> Forecast:
    """*said* with the cost that a tariff from the configuration gives it."""
    if tariff.per_kwh is None or said.kwh_per_mtok is None or said.cost_per_mtok is not None:
        return said
    basis = tuple(text for text in said.basis if not text.startswith("no cost"))
    return dataclasses.replace(said, cost_per_mtok=times(said.kwh_per_mtok, tariff.per_kwh), basis=basis)


def to_json(report: PowerReport) -> dict[str, Any]:
    """The report, with the cap's curve as rows."""
    document = dataclasses.asdict(report)
    if report.cap is not None:
        document["cap"]["caps_w"] = dict(report.cap.caps_w)
        document["cap"]["curve"] = [point._asdict() for point in report.cap.curve]
    return document

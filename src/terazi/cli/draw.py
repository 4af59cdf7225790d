"""Writes the pictures of a weighing: ``--svg FILE``, ``--html FILE``."""

import os
from collections.abc import Callable

from terazi.cli.render import title_of
from terazi.cli.terminal import one_line
from terazi.errors import UsageError
from terazi.performance.phases import Phase, phases
from terazi.pictures.cap_curve import cap_curve
from terazi.pictures.device_map import device_map
from terazi.pictures.page import Table, page
from terazi.pictures.roofline import roofline
from terazi.pictures.svg import Panel, sheet
from terazi.placement.plan import Refusal
from terazi.service.weighing import Weighing
from terazi.units import format_bytes


def draw_svg(weighing: Weighing) -> str:
    """Device map, roofline and cap curve as one SVG document."""
    panels = _panels(weighing)
    return sheet(panels, title=panels[0].title, description=panels[0].description)


def draw_html(weighing: Weighing) -> str:
    """The same with tables, as one HTML page."""
    title = title_of(weighing)
    outcome = weighing.outcome
    verdict = f"refused: {outcome.reason}" if isinstance(outcome, Refusal) else str(outcome.verdict)
    reasons = (outcome.reason,) if isinstance(outcome, Refusal) else outcome.reasons
    lead = f"on {one_line(weighing.machine.name)}, for {weighing.workload.users} at once: {verdict}"
    return page(title, lead, draw_svg(weighing), _tables(weighing), reasons)


def write(path: str, draw: Callable[[Weighing], str], weighing: Weighing) -> None:
    """Draw into *path*, whole or not at all.

    Raises:
        UsageError: the file can't be written.
    """
    text = draw(weighing)
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(part, "w", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - start-up time
            file.write(text)
        os.replace(part, path)  # noqa: PTH105 - as above
    except OSError as error:
        if os.path.exists(part):  # noqa: PTH110 - as above
            os.unlink(part)  # noqa: PTH108 - as above
        raise UsageError(
            f"{path} can't be written: {error.strerror}", hint="name a file in a folder of yours"
        ) from error


def _panels(weighing: Weighing) -> list[Panel]:
    title = f"{title_of(weighing)} on {one_line(weighing.machine.name)}"
    panels = [device_map(weighing.machine, weighing.shares, weighing.outcome.bill.growth, title=title)]
    work = _phases(weighing)
    drawn = roofline(weighing.machine, work) if work else None
    if drawn is not None:
        panels.append(drawn)
    if weighing.power is not None and weighing.power.cap is not None and weighing.power.cap.caps_w:
        panels.append(cap_curve(weighing.power.cap))
    return panels


def _phases(weighing: Weighing) -> tuple[Phase, ...]:
    plan, forecast = weighing.plan, weighing.forecast
    if plan is None or forecast is None:
        return ()
    return phases(weighing.spec, plan, weighing.machine, weighing.workload, forecast)


def _tables(weighing: Weighing) -> list[Table]:
    bill = weighing.outcome.bill
    tables = [
        Table(
            f"Bill ({bill.engine} {bill.build}), {format_bytes(bill.total_bytes)} in all",
            ("device", "what", "how much", "how it is known"),
            tuple(
                (line.device, f"{line.term.value} ({line.formula})", format_bytes(line.bytes), line.basis.value)
                for line in bill.lines
                if line.bytes
            ),
        )
    ]
    power = weighing.power
    if power is not None:
        money = power.tariff.currency
        tables.append(
            Table(
                "Power at the wall, and what a million tokens take",
                ("work", "watts", "kWh", f"cost ({money})"),
                tuple(
                    (
                        f"{p.name} (tokens {p.tokens})",
                        f"{p.wall_w.mid:,.0f}",
                        f"{p.kwh_per_mtok.mid:.3g}",
                        "no tariff" if p.cost_per_mtok is None else f"{p.cost_per_mtok.mid:.3g}",
                    )
                    for p in power.phases
                ),
            )
        )
    return tables

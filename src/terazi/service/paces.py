"""Running deployments feed later forecasts: now and then it is looked how fast they really decode."""

import asyncio
import dataclasses
import time
from collections.abc import Callable

from terazi.engines.llama_cpp.endpoints import MAX_BODY, Slot, parse_slots
from terazi.engines.llama_cpp.pace import Pace, pace
from terazi.models.spec import ModelSpec
from terazi.performance.forecast import forecast
from terazi.placement.plan import Plan
from terazi.policy.lifecycle_messages import Phase
from terazi.service.calibrations import calibration_of, machine_key, model_key
from terazi.service.deployment import Deployment
from terazi.service.records import store_file
from terazi.supervisor.health import EngineClient
from terazi.telemetry.store.speeds import Speed, add_speed
from terazi.telemetry.store.sqlite import Store, StoreError

#: Between two looks that make one record, and between records.
WINDOW_S = 2.0
PAUSE_S = 20.0


async def watch(
    deployments: Callable[[], list[Deployment]],
    notice: Callable[[str], None],
    *,
    window_s: float = WINDOW_S,
    pause_s: float = PAUSE_S,
) -> None:
    """Look at what is busy until cancelled; a store that can't be used ends it, and is said."""
    while True:
        await asyncio.sleep(pause_s)
        for deployment in deployments():
            if not deployment.in_flight or deployment.runner.state.phase is not Phase.READY:
                continue
            found = await _look(deployment, window_s)
            if found is None:
                continue
            try:
                await asyncio.to_thread(keep_pace, deployment, found)
            except StoreError as error:
                notice(f"note: speeds aren't recorded: {error.message} ({error.hint})")
                return


def keep_pace(deployment: Deployment, found: Pace) -> None:
    """Keep *found* beside what would have been forecast for just that.

    Raises:
        StoreError: it can't be kept.
    """
    weighing, plan = deployment.weighing, deployment.plan
    said = expected_tok_s(weighing.spec, plan, deployment, found)
    add_speed(
        Store(store_file()),
        Speed(
            machine=machine_key(weighing.machine),
            model=model_key(weighing.spec, plan),
            wall_s=time.time(),
            build=deployment.build,
            streams=float(found.streams),
            depth=found.depth,
            tok_s=found.tok_s,
            forecast_tok_s=said,
        ),
    )


def expected_tok_s(spec: ModelSpec, plan: Plan, deployment: Deployment, found: Pace) -> float:
    """The forecast for as many streams at that depth, without what was learned from earlier records."""
    machine = deployment.weighing.machine
    used = calibration_of(machine, build=deployment.build)
    workload = dataclasses.replace(plan.workload, users=found.streams, prompt=max(1, round(found.depth)), output=1)
    said = forecast(spec, plan, machine, workload, calibration=None if used is None else used.calibration)
    return said.throughput_tok_s.mid


async def _look(deployment: Deployment, window_s: float) -> Pace | None:
    client = EngineClient(deployment.base_url, deployment.api_key)
    try:
        before = await _slots(client)
        began = time.monotonic()
        await asyncio.sleep(window_s)
        passed = time.monotonic() - began
        after = await _slots(client)
    finally:
        await client.close()
    return None if before is None or after is None else pace(before, after, passed)


async def _slots(client: EngineClient) -> tuple[Slot, ...] | None:
    body = await client.read("/slots", limit_bytes=MAX_BODY)
    try:
        return None if body is None else parse_slots(body)
    except ValueError:
        return None

"""A deployment: one planned engine process of a model, as the gateway and the control API see it."""

import asyncio
import dataclasses
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from terazi.engines.base import LaunchSpec
from terazi.engines.llama_cpp.binary import Binary
from terazi.engines.llama_cpp.endpoints import MAX_BODY
from terazi.engines.llama_cpp.launch import launch_spec
from terazi.engines.llama_cpp.reconcile import reconcile
from terazi.gateway.backend import HeldMemory, ModelCard
from terazi.gateway.in_flight import InFlight
from terazi.memory.bill import HOST
from terazi.placement.plan import Plan
from terazi.policy.lifecycle import Limits, State
from terazi.policy.lifecycle_messages import Phase
from terazi.policy.progress import Patience
from terazi.service.config import LlamaCppTable
from terazi.service.live import live_figures
from terazi.service.weighing import Weighing
from terazi.supervisor.health import EngineClient
from terazi.supervisor.runner import EngineRunner
from terazi.supervisor.vitals import DeviceMemory
from terazi.telemetry.reconciliation import ProcessMemory, Reconciliation, to_json

if TYPE_CHECKING:
    from terazi.supervisor.died import EngineDiedError


class Deployment:
    """Implements the gateway's ``Backend``.

    Args:
        weighing, plan: what runs.
        binary: the engine.
        card: of its model.
        replica: its name, unique in the service.
        run_dir, log_path: where its record and its log are kept.
        limits: patience.
        on_change: is told each change of phase.
        on_use: is told when its requests in flight become more or fewer.
        device_memory: what the driver last counted for a process, for what is kept of a crash.
        slot_dir: where it may write down what its slots hold.
    """

    def __init__(
        self,
        weighing: Weighing,
        plan: Plan,
        binary: Binary,
        *,
        card: ModelCard,
        replica: str,
        run_dir: Path,
        log_path: str,
        limits: LlamaCppTable,
        on_change: Callable[["Deployment", State], None] = lambda *_: None,
        on_use: Callable[["Deployment"], None] = lambda _: None,
        device_memory: DeviceMemory | None = None,
        slot_dir: Path | None = None,
    ) -> None:
        self.weighing = weighing
        self.plan = plan
        self.reconciliation: Reconciliation | None = None
        #: Why it was stopped before it was ready, if its own failure was the reason.
        self.given_up: EngineDiedError | None = None
        self.build = binary.label
        self.card = card
        self.replica = replica
        self.log_path = log_path
        self.flight = InFlight(lambda: on_use(self))
        self._limits = limits

        def launch(port: int) -> LaunchSpec:
            """A new port and a new key for every start."""
            launch = launch_spec(
                plan,
                weighing.spec,
                binary,
                port=port,
                api_key=secrets.token_urlsafe(24),
                model_path=weighing.spec.files[0].path,
                model_name=card.id,
                threads=weighing.machine.host.cores,
                slot_dir=None if slot_dir is None else str(slot_dir),
                projector_path=None if weighing.projector is None else weighing.projector.files[0].path,
            )
            forecast = weighing.forecast
            return dataclasses.replace(
                launch,
                stall_s=self._limits.stall_s,
                stop_grace_s=self._limits.stop_grace_s,
                prefill_tok_s=None if forecast is None else forecast.prefill_tok_s.low,
                elsewhere=limits.cpu_fallback,
            )

        self.runner = EngineRunner(
            launch,
            run_dir=str(run_dir),
            log_path=self.log_path,
            in_flight=lambda: self.flight.count,
            requests=self.flight.recent,
            bytes_seen=lambda: self.flight.bytes_seen,
            patience=_patience(limits),
            device_memory=device_memory,
            on_change=lambda state: on_change(self, state),
            # one more try by itself; after that it is the keeper's to say when, and to whom it is told
            limits=Limits(max_load_failures=2),
        )

    @property
    def base_url(self) -> str:
        """Where the engine listens now."""
        return self.runner.spec.base_url

    @property
    def api_key(self) -> str:
        """The key that the engine demands."""
        return self.runner.spec.api_key

    @property
    def state(self) -> str:
        """The lifecycle state's name."""
        return self.runner.state.phase.value

    @property
    def memory(self) -> HeldMemory:
        """Planned bytes in all, and of them on accelerators."""
        total = self.plan.bill.total_bytes
        return HeldMemory(size_bytes=total, size_vram_bytes=total - self.plan.bill.on(HOST).total_bytes)

    @property
    def in_flight(self) -> int:
        """Requests that the engine is working on."""
        return self.flight.count

    @property
    def ended_from_outside(self) -> bool:
        """Whether nothing that its last process was doing can have been the cause of its end."""
        return self.runner.ended_from_outside

    async def why_lost(self) -> str | None:
        """How its engine ended just now, for the client of a request that it had; None if nobody knows."""
        return await self.runner.why_lost()

    def be_patient(self, limits: LlamaCppTable) -> None:
        """So patient from now on, with the engine that runs too."""
        self._limits = limits
        self.runner.be_patient(_patience(limits), stall_s=limits.stall_s, stop_grace_s=limits.stop_grace_s)

    async def ready(self) -> None:
        """Wait until the engine answers; raises EngineError if it won't."""
        await self.runner.wait_ready()

    def reconcile(self, process: ProcessMemory) -> Reconciliation:
        """Hold the plan's bill against what the engine's log said while it loaded."""
        report = self.runner.report
        self.reconciliation = Reconciliation(
            plan_id=self.plan.id,
            engine=self.plan.engine,
            build=self.build,
            model=self.card.id,
            wall_s=time.time(),
            rows=() if report is None else reconcile(self.plan.bill, report),
            process=process,
        )
        return self.reconciliation

    def _uptime_s(self) -> float | None:
        started = self.runner.started_at
        return None if started is None else asyncio.get_running_loop().time() - started

    async def _ask(self) -> dict[str, Any]:
        client = EngineClient(self.base_url, self.api_key)
        try:
            return live_figures(
                *await asyncio.gather(
                    *(client.read(path, limit_bytes=MAX_BODY) for path in ("/props", "/slots", "/metrics"))
                )
            )
        finally:
            await client.close()

    async def snapshot(self) -> dict[str, Any]:
        """One replica in ``terazi ps --json``: what was planned beside what the engine says of itself."""
        report = self.runner.report
        expected: dict[str, int] = {}
        for entry in self.runner.spec.expectations:
            expected[entry.device] = expected.get(entry.device, 0) + entry.bytes
        measured: dict[str, int] = {}
        for buffer in () if report is None else report.buffers:
            measured[buffer.device] = measured.get(buffer.device, 0) + buffer.bytes
        return {
            "replica": self.replica,
            "state": self.state,
            "pid": self.runner.pid,
            "uptime_s": self._uptime_s(),
            "plan_id": self.plan.id,
            "in_flight": self.flight.count,
            "restarts": self.runner.restarts,
            "reconciliation": None if self.reconciliation is None else to_json(self.reconciliation),
            "live": await self._ask() if self.runner.state.phase is Phase.READY else None,
            "devices": [
                {
                    "id": share.id,
                    "name": share.name,
                    "layers": None if share.layers is None else list(share.layers),
                    "planned_bytes": share.total_bytes,
                    # the log knows the engine's own buffers: no driver context, but all that a mapping spans
                    "expected_in_log_bytes": expected.get(share.id, 0),
                    "measured_bytes": measured.get(share.id),
                }
                for share in self.plan.devices
                if share.total_bytes
            ],
        }


def _patience(limits: LlamaCppTable) -> Patience:
    return Patience(silent_s=limits.stuck_s)

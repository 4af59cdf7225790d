"""A deployment: one planned model with its engine process, as the gateway and the control API see it."""

import asyncio
import contextlib
import dataclasses
import hashlib
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from terazi.engines.base import LaunchSpec
from terazi.engines.llama_cpp.binary import Binary
from terazi.engines.llama_cpp.endpoints import MAX_BODY, parse_metrics, parse_props, parse_slots
from terazi.engines.llama_cpp.launch import launch_spec
from terazi.engines.llama_cpp.reconcile import reconcile
from terazi.gateway.backend import HeldMemory, ModelCard
from terazi.gateway.in_flight import InFlight
from terazi.memory.bill import HOST
from terazi.models.spec import ArrayInfo, ModelSpec
from terazi.placement.plan import Plan
from terazi.policy.lifecycle_messages import Phase
from terazi.policy.progress import Patience
from terazi.service.config import LlamaCppTable
from terazi.service.weighing import Weighing
from terazi.supervisor.health import EngineClient
from terazi.supervisor.log import claim
from terazi.supervisor.runner import EngineRunner
from terazi.telemetry.reconciliation import ProcessMemory, Reconciliation, to_json

_PART = re.compile(r"-\d{5}-of-\d{5}$")
#: The engine leaves the first token of an answer out of its time, so the token that proved it ready took none.
_MEASURABLE_S = 0.01
_UNNAMEABLE = re.compile(r"[,\s-]*[,\s][,\s-]*")


class Deployment:
    """Implements the gateway's ``Backend``, and its ``Served``."""

    def __init__(
        self,
        weighing: Weighing,
        plan: Plan,
        binary: Binary,
        *,
        alias: str,
        run_dir: Path,
        limits: LlamaCppTable,
        on_ready: Callable[["Deployment"], None] = lambda _: None,
    ) -> None:
        self.weighing = weighing
        self.plan = plan
        self.reconciliation: Reconciliation | None = None
        self.build = binary.label
        self.card = make_card(weighing.spec, plan, alias=alias)
        self.log_path, self._log_lock = claim(run_dir / "logs", _slug(self.card.id))
        self._flight = InFlight()

        def launch(port: int) -> LaunchSpec:
            """A new port and a new key for every start."""
            launch = launch_spec(
                plan,
                weighing.spec,
                binary,
                port=port,
                api_key=secrets.token_urlsafe(24),
                model_path=weighing.spec.files[0].path,
                model_name=self.card.id,
                threads=weighing.machine.host.cores,
            )
            forecast = weighing.forecast
            return dataclasses.replace(
                launch,
                stall_s=limits.stall_s,
                stop_grace_s=limits.stop_grace_s,
                prefill_tok_s=None if forecast is None else forecast.prefill_tok_s.low,
                elsewhere=limits.cpu_fallback,
            )

        self.runner = EngineRunner(
            launch,
            run_dir=str(run_dir),
            log_path=self.log_path,
            in_flight=lambda: self._flight.count,
            requests=self._flight.recent,
            bytes_seen=lambda: self._flight.bytes_seen,
            patience=Patience(silent_s=limits.stuck_s),
            on_change=lambda state: on_ready(self) if state.phase is Phase.READY else None,
        )

    @property
    def replica(self) -> str:
        """The model's id: there is one engine for each."""
        return self.card.id

    @property
    def engines(self) -> tuple["Deployment", ...]:
        """Itself."""
        return (self,)

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
        return self._flight.count

    def tracking(self, request: str = "") -> contextlib.AbstractContextManager[InFlight]:
        """Count a request while it is with the engine."""
        return self._flight.tracking(request)

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
        """The model's part of ``terazi ps --json``: what was planned beside what the engine says of itself."""
        report = self.runner.report
        expected: dict[str, int] = {}
        for entry in self.runner.spec.expectations:
            expected[entry.device] = expected.get(entry.device, 0) + entry.bytes
        measured: dict[str, int] = {}
        for buffer in () if report is None else report.buffers:
            measured[buffer.device] = measured.get(buffer.device, 0) + buffer.bytes
        return {
            "id": self.card.id,
            "aliases": list(self.card.aliases),
            "state": self.state,
            "engine": self.plan.engine,
            "pid": self.runner.pid,
            "uptime_s": self._uptime_s(),
            "plan_id": self.plan.id,
            "in_flight": self._flight.count,
            "restarts": self.runner.restarts,
            "context": self.card.context_length,
            "forecast": None if self.weighing.forecast is None else dataclasses.asdict(self.weighing.forecast),
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


def live_figures(props: str | None, slots: str | None, metrics: str | None) -> dict[str, Any]:
    """What the engine's three answers say; None for what it doesn't tell. Rates are means since it started."""
    said: dict[str, Any] = {"build": None, "context": None, "slots": None, "slots_busy": None}
    with contextlib.suppress(ValueError):
        if props is not None:
            read = parse_props(props)
            said.update(build=read.build_info, context=read.n_ctx)
    with contextlib.suppress(ValueError):
        if slots is not None:
            states = parse_slots(slots)
            said.update(slots=len(states), slots_busy=sum(slot.is_processing for slot in states))
    counts: dict[str, float] = {}
    with contextlib.suppress(ValueError):
        counts = parse_metrics(metrics) if metrics is not None else {}
    for name, tokens, seconds in (
        ("decode_tok_s", "output_tokens", "output_s"),
        ("prefill_tok_s", "prompt_tokens", "prompt_s"),
    ):
        said[tokens] = counts.get(tokens)
        long_enough = counts.get(seconds, 0.0) >= _MEASURABLE_S and tokens in counts
        said[name] = counts[tokens] / counts[seconds] if long_enough else None
    return said


def model_id(spec: ModelSpec) -> str:
    """The name that clients use: the file's, without its ending, its part number and what a name can't hold.

    The engine takes a comma for a list of names, and answers carry the engine's word for the model, so a client
    must be given a name that stays the same on the way.
    """
    return (
        _UNNAMEABLE.sub("-", "".join(c if c.isprintable() else "-" for c in _file_name(spec))).strip("-") or "model"
    )


def _file_name(spec: ModelSpec) -> str:
    return _PART.sub("", Path(spec.files[0].path).stem)


def make_card(spec: ModelSpec, plan: Plan, *, alias: str) -> ModelCard:
    """What clients are told about the model."""
    path = Path(spec.files[0].path)
    name = model_id(spec)
    others = {other: None for other in (alias, _file_name(spec)) if "/" not in other and other.isprintable()}
    stat = path.stat()
    template = spec.metadata.get("tokenizer.chat_template")
    capabilities = ["completion", *(["tools"] if isinstance(template, str) and "tool" in template else [])]
    return ModelCard(
        id=name,
        aliases=tuple(other for other in others if other != name),
        architecture=spec.architecture,
        family=spec.architecture,
        parameter_count=spec.parameter_count,
        quantisation=spec.quantisation,
        size_bytes=spec.file_bytes,
        context_length=plan.workload.context or spec.context_length,
        training_context_length=spec.context_length,
        embedding_length=spec.embedding_length,
        created_s=int(stat.st_mtime),
        modified=time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(stat.st_mtime)),
        digest=hashlib.sha256(f"{name}:{spec.file_bytes}:{stat.st_mtime_ns}".encode()).hexdigest(),
        capabilities=tuple(capabilities),
        model_info={key: value for key, value in spec.metadata.items() if not isinstance(value, ArrayInfo | tuple)},
        template=template if isinstance(template, str) else None,
        engine=plan.engine,
    )


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:80] or "model"

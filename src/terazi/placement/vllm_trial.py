"""One set of vLLM settings on one machine: weighed, held against the memory, and told as a plan.

In: ``ModelSpec``, ``Machine``, ``VllmSettings``. Out: ``Trial``, and of one that fits a ``Plan``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from terazi.hardware.machine import Machine
from terazi.memory.bill import HOST
from terazi.memory.companion import Companion
from terazi.memory.vllm.bill import Appraisal, appraise
from terazi.memory.vllm.ranks import DRAFT
from terazi.memory.vllm.settings import VllmSettings
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec
from terazi.placement.capacity import capacity_of
from terazi.placement.identity import plan_id
from terazi.placement.plan import DeviceShare, Plan, Shortfall, Verdict
from terazi.units import format_bytes


class Trial:
    """One set of settings, weighed and held against the machine."""

    def __init__(
        self, spec: ModelSpec, machine: Machine, settings: VllmSettings, users: int, draft: ModelSpec | None = None
    ) -> None:
        self.settings = settings
        self.draft = draft
        self.companions = () if draft is None else (Companion(DRAFT, "--speculative-config", draft),)
        self.appraisal = appraise(spec, settings, machine.devices, machine.host, draft)
        self.shares = tuple(_shares(self.appraisal, machine))
        self.shortfall = tuple(
            Shortfall(device=s.id, needed_bytes=s.total_bytes, capacity_bytes=s.capacity_bytes)
            for s in self.shares
            if s.total_bytes > s.capacity_bytes
        )
        pool = self.appraisal.pool
        self.crowded = pool is not None and pool.fits and pool.blocks_per_sequence * users > pool.blocks
        self.reason = self._reason(users)

    @property
    def fits(self) -> bool:
        return not self.reason

    def _reason(self, users: int) -> str:
        if self.appraisal.objections:
            first = self.appraisal.objections[0]
            return f"vLLM would not start: {first.message}. {first.hint[:1].upper()}{first.hint[1:]}."
        if self.shortfall:
            worst = max(self.shortfall, key=lambda s: s.missing_bytes)
            return (
                f"{worst.device} would need {format_bytes(worst.needed_bytes)} and may use"
                f" {format_bytes(worst.capacity_bytes)}: {format_bytes(worst.missing_bytes)} are missing."
            )
        pool = self.appraisal.pool
        if self.crowded and pool is not None:
            return (
                f"The KV cache holds {pool.concurrency:.2f} sequences of {pool.max_model_len} tokens at once,"
                f" and {users} are wanted."
            )
        return ""


def plan_of(
    spec: ModelSpec, machine: Machine, tried: Trial, workload: Workload, reasons: Sequence[str] = ()
) -> Plan:
    """The plan of a trial that fits; *reasons* come before its own."""
    return Plan(
        id=plan_id(spec, machine, tried.settings, tried.companions),
        engine=tried.appraisal.bill.engine,
        settings=tried.settings,
        workload=workload,
        verdict=Verdict.FITS,
        devices=tried.shares,
        bill=tried.appraisal.bill,
        reasons=(*reasons, *_reasons(tried, machine)),
    )


def workload_of(tried: Trial, *, prompt: int, output: int) -> Workload:
    """What a command's own settings serve at once."""
    pool, resolved = tried.appraisal.pool, tried.appraisal.resolved
    length = pool.max_model_len if pool is not None else resolved.max_model_len
    users = max(1, min(resolved.max_num_seqs, int(pool.concurrency) if pool is not None else 1))
    return Workload(context=length, users=users, prompt=prompt, output=output)


def served(tried: Trial, workload: Workload) -> Workload:
    """*workload* with the context that the cache was made for."""
    pool = tried.appraisal.pool
    return replace(workload, context=pool.max_model_len if pool is not None else workload.context)


def _shares(appraisal: Appraisal, machine: Machine) -> Iterator[DeviceShare]:
    bill, capacity = appraisal.bill, capacity_of(machine)
    by_device = {rank.device: rank.stage for rank in appraisal.ranks}
    last = len(appraisal.resolved.stages) - 1
    for device in (*machine.devices, None):
        name = HOST if device is None else device.id
        held = bill.on(name)
        stage = by_device.get(name)
        layers = None
        if stage is not None and appraisal.resolved.stages[stage]:
            span = appraisal.resolved.stages[stage]
            layers = (span.start, span.stop if stage == last else span.stop - 1)
        limit = capacity.host_bytes if device is None else device.memory_free_bytes
        yield DeviceShare(
            id=name,
            name=machine.host.cpu_name or "CPU and RAM" if device is None else device.name,
            layers=layers,
            weights_bytes=held.weights_bytes,
            kv_bytes=held.kv_bytes,
            state_bytes=held.state_bytes,
            compute_bytes=held.compute_bytes,
            overhead_bytes=held.overhead_bytes,
            total_bytes=held.total_bytes,
            capacity_bytes=limit,
            headroom_bytes=limit - held.total_bytes,
        )


def _reasons(tried: Trial, machine: Machine) -> Iterator[str]:
    appraisal, settings = tried.appraisal, tried.settings
    ranks = len(appraisal.ranks)
    where = "on the CPU, which is what vLLM's CPU build runs on"
    if appraisal.resolved.target.gpu:
        where = f"on {', '.join(dict.fromkeys(r.device for r in appraisal.ranks))}"
    cut = []
    if settings.tensor_parallel > 1:
        cut.append(f"each layer cut in {settings.tensor_parallel}")
    if settings.pipeline_parallel > 1:
        cut.append(f"{settings.pipeline_parallel} stages of layers")
    if settings.data_parallel > 1:
        cut.append(f"{settings.data_parallel} copies")
    yield f"{ranks} rank{'s' if ranks > 1 else ''} {where}{': ' + ', '.join(cut) if cut else ''}."
    pool = appraisal.pool
    if pool is not None and pool.blocks_per_sequence:
        yield (
            f"The KV cache holds {pool.tokens} tokens: {pool.concurrency:.2f} sequences of"
            f" {pool.max_model_len} tokens at once, in {pool.blocks} blocks."
        )
    least = {r.available for r in appraisal.ranks}
    if len(least) > 1:
        worst = min(appraisal.ranks, key=lambda r: r.available)
        yield f"{worst.device} has the least left for the cache, so it decides how many blocks every rank gets."
    unused = [d.id for d in machine.devices if d.id not in {r.device for r in appraisal.ranks}]
    if unused:
        yield f"{', '.join(unused)} left unused."

"""vLLM on a machine: how many cards share the model, what each holds, and what would fit instead.

In: ``ModelSpec``, ``Machine``, ``Workload``, settings or pins. Out: ``Plan | Refusal``. vLLM takes a share of each
card (92 % unless told) and gives the KV cache what the model leaves of it, so the rest of a card is its reserve.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from terazi.errors import UsageError
from terazi.hardware.machine import Device, Machine
from terazi.memory.bill import HOST
from terazi.memory.companion import Companion
from terazi.memory.vllm.bill import Appraisal, appraise
from terazi.memory.vllm.model import read_model
from terazi.memory.vllm.objections import divides_heads
from terazi.memory.vllm.ranks import DRAFT, free_for_engine
from terazi.memory.vllm.settings import AUTO_LENGTH, DEFAULT_UTILIZATION, VllmSettings
from terazi.memory.vllm.target import usable
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec
from terazi.placement.capacity import capacity_of
from terazi.placement.identity import plan_id
from terazi.placement.plan import Alternative, DeviceShare, Plan, Refusal, Shortfall, Verdict
from terazi.units import MIB, format_bytes, pad

_ALTERNATIVES: Final = 4
#: Smaller shares of a card that are tried where it isn't free.
_SHARES: Final = (0.9, 0.85, 0.8, 0.7, 0.5)
#: Objections that more memory or a smaller cache would answer.
_OF_MEMORY: Final = frozenset({"free", "blocks", "cache"})


class _Tried:
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


def follow_vllm(
    spec: ModelSpec,
    machine: Machine,
    settings: VllmSettings,
    *,
    prompt: int,
    output: int,
    draft: ModelSpec | None = None,
) -> Plan | Refusal:
    """What exactly *settings* hold on each device, and whether vLLM would start; *draft* guesses tokens for it.

    Raises:
        UsageError: a value that vLLM has no meaning for.
    """
    tried = _Tried(spec, machine, settings, 1, draft)
    workload = _workload(tried, prompt=prompt, output=output)
    if tried.fits:
        return _plan(spec, machine, tried, workload)
    return _refusal(spec, machine, tried, workload, users=1)


def solve_vllm(spec: ModelSpec, machine: Machine, workload: Workload, pins: Mapping[str, object]) -> Plan | Refusal:
    """The fewest cards that hold the model and divide its heads, with as long a context as was asked for.

    Args:
        spec: the model.
        machine: its cards; without one that vLLM supports its CPU build is planned for.
        workload: a context of None takes the model's own, or what fits.
        pins: settings that were typed, under their names in ``VllmSettings``.

    Raises:
        UsageError: a pin that isn't vLLM's.
    """
    settings = _pinned(pins)
    model = read_model(spec)
    cards = usable(machine.devices)
    sizes = [settings.tensor_parallel] if "tensor_parallel" in pins else range(1, max(1, len(cards)) + 1)
    first: _Tried | None = None
    if "gpu_memory_utilization" not in pins:
        settings = replace(settings, gpu_memory_utilization=_free_share(cards))
    for size in sizes:
        if not divides_heads(model, size) and size > 1:
            continue
        for tried in _lengths(spec, machine, replace(settings, tensor_parallel=size), workload):
            if tried.fits:
                return _plan(spec, machine, tried, _served(tried, workload))
            # the one with the most cards, at the length asked for, came nearest
            if first is None or size > first.settings.tensor_parallel:
                first = tried
    closest = first or _Tried(spec, machine, settings, workload.users)
    return _refusal(spec, machine, closest, _served(closest, workload), users=workload.users)


def _free_share(cards: tuple[Device, ...]) -> float:
    """vLLM's usual share of a card, or as much as is free on the fullest of *cards*, in hundredths."""
    free = min((free_for_engine(c) / c.memory_total_bytes for c in cards if c.memory_total_bytes), default=1.0)
    return min(DEFAULT_UTILIZATION, max(1, int(100 * free)) / 100)


def _lengths(spec: ModelSpec, machine: Machine, settings: VllmSettings, workload: Workload) -> Iterator[_Tried]:
    """*settings* with the context that was asked for; if none was, the model's own, then as much as fits."""
    cards = usable(machine.devices)
    wanted = [workload.context] if workload.context is not None else [None, AUTO_LENGTH]
    for length in wanted if settings.max_model_len is None else [settings.max_model_len]:
        chosen = replace(settings, max_model_len=length)
        if not cards and settings.kv_cache_memory_bytes is None:
            chosen = _with_cpu_cache(spec, machine, chosen, workload)
        tried = _Tried(spec, machine, chosen, workload.users)
        pool = tried.appraisal.pool
        if length == AUTO_LENGTH and pool is not None and pool.longest:
            # what fits is said as a number, so that the same command gives the same plan
            share = max(1, pool.longest // workload.users)
            tried = _Tried(spec, machine, replace(chosen, max_model_len=share), workload.users)
        yield tried


def _with_cpu_cache(spec: ModelSpec, machine: Machine, settings: VllmSettings, workload: Workload) -> VllmSettings:
    """On a CPU the cache's size must be said: what the users need, or what is left."""
    trial = replace(settings, kv_cache_memory_bytes=MIB)
    appraisal = appraise(spec, trial, machine.devices, machine.host)
    held = appraisal.bill.total_bytes - MIB
    ranks = max(1, settings.world_size)
    left = (capacity_of(machine).host_bytes - held) // ranks
    pool = appraisal.pool
    wanted = left
    if pool is not None and settings.max_model_len != AUTO_LENGTH:
        blocks = pool.blocks_per_sequence * workload.users + 1
        wanted = pad(blocks * max(pool.block_bytes, default=0), MIB)
    return replace(settings, kv_cache_memory_bytes=max(MIB, min(wanted, left) // MIB * MIB))


def _pinned(pins: Mapping[str, object]) -> VllmSettings:
    known = {name: value for name, value in pins.items() if name in VllmSettings.__slots__}
    strange = sorted(set(pins) - set(known))
    if strange:
        raise UsageError(
            f"these settings are llama.cpp's, not vLLM's: {', '.join(strange)}",
            hint="leave them out, or say --engine llama.cpp",
        )
    settings = VllmSettings()
    for name, value in known.items():
        settings = _with(settings, name, value)
    return settings


def _with(settings: VllmSettings, name: str, value: object) -> VllmSettings:
    if name == "kv_cache_dtype" and isinstance(value, str):
        return replace(settings, kv_cache_dtype=value)
    if name == "max_num_batched_tokens" and isinstance(value, int):
        return replace(settings, max_num_batched_tokens=value)
    if name == "tensor_parallel" and isinstance(value, int):
        return replace(settings, tensor_parallel=value)
    raise UsageError(f"{name} can't be pinned for vLLM", hint="put it into a command: terazi weigh -- vllm serve …")


def _plan(spec: ModelSpec, machine: Machine, tried: _Tried, workload: Workload) -> Plan:
    return Plan(
        id=plan_id(spec, machine, tried.settings, tried.companions),
        engine=tried.appraisal.bill.engine,
        settings=tried.settings,
        workload=workload,
        verdict=Verdict.FITS,
        devices=tried.shares,
        bill=tried.appraisal.bill,
        reasons=tuple(_reasons(tried, machine)),
    )


def _workload(tried: _Tried, *, prompt: int, output: int) -> Workload:
    pool, resolved = tried.appraisal.pool, tried.appraisal.resolved
    length = pool.max_model_len if pool is not None else resolved.max_model_len
    users = max(1, min(resolved.max_num_seqs, int(pool.concurrency) if pool is not None else 1))
    return Workload(context=length, users=users, prompt=prompt, output=output)


def _served(tried: _Tried, workload: Workload) -> Workload:
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


def _reasons(tried: _Tried, machine: Machine) -> Iterator[str]:
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


def _refusal(spec: ModelSpec, machine: Machine, tried: _Tried, workload: Workload, *, users: int) -> Refusal:
    return Refusal(
        reason=tried.reason,
        shortfall=tried.shortfall,
        alternatives=tuple(_alternatives(spec, machine, tried, users))[:_ALTERNATIVES],
        closest=tried.shares,
        bill=tried.appraisal.bill,
        settings=tried.settings,
        workload=workload,
    )


def _alternatives(spec: ModelSpec, machine: Machine, tried: _Tried, users: int) -> Iterator[Alternative]:
    """Settings near the refused ones that fit, the smallest change first."""
    for change, gives_up, settings in _changes(machine, tried):
        other = _Tried(spec, machine, settings, users, tried.draft)
        if other.fits:
            yield Alternative(
                settings=settings,
                change=change,
                gives_up=gives_up,
                total_bytes=other.appraisal.bill.total_bytes,
            )


def _changes(machine: Machine, tried: _Tried) -> Iterator[tuple[str, str, VllmSettings]]:
    codes = {o.code for o in tried.appraisal.objections}
    yield from _corrections(tried, codes)
    if codes <= _OF_MEMORY:
        yield from _savings(machine, tried, codes)


def _corrections(tried: _Tried, codes: set[str]) -> Iterator[tuple[str, str, VllmSettings]]:
    """What vLLM's own checks would take instead."""
    settings, model = tried.settings, tried.appraisal.model
    if codes & {"heads", "divide"}:
        for size in range(settings.tensor_parallel - 1, 0, -1):
            if divides_heads(model, size):
                yield f"-tp {size}", "nothing but speed", replace(settings, tensor_parallel=size)
    if codes & {"pipeline", "layers"}:
        yield "-pp 1", "nothing but room", replace(settings, pipeline_parallel=1, layer_partition=())
    if "length" in codes:
        longest = model.max_length
        yield (
            f"--max-model-len {longest}",
            "length beyond the model's own",
            replace(settings, max_model_len=longest),
        )
    if "dtype" in codes:
        other = "half" if tried.appraisal.resolved.dtype == "bfloat16" else "bfloat16"
        yield f"--dtype {other}", "the range of the other type", replace(settings, dtype=other)
    if "batch" in codes:
        fewer = replace(settings, max_num_seqs=None, max_num_batched_tokens=None)
        yield "vLLM's own batch limits", "the limits given", fewer


def _savings(machine: Machine, tried: _Tried, codes: set[str]) -> Iterator[tuple[str, str, VllmSettings]]:
    """What takes less memory, or spreads it."""
    settings, appraisal = tried.settings, tried.appraisal
    pool, gpu = appraisal.pool, appraisal.resolved.target.gpu
    if "free" in codes:
        for share in _SHARES:
            if share < settings.gpu_memory_utilization:
                fewer = replace(settings, gpu_memory_utilization=share)
                yield f"--gpu-memory-utilization {share:g}", "room in the KV cache", fewer
    if pool is not None and pool.longest and not pool.fits:
        shorter = replace(settings, max_model_len=pool.longest)
        yield f"--max-model-len {pool.longest}", "longer sequences", shorter
    if settings.kv_cache_dtype == "auto" and gpu:
        yield "--kv-cache-dtype fp8", "precision of the cache", replace(settings, kv_cache_dtype="fp8")
    if not settings.enforce_eager and gpu:
        yield "--enforce-eager", "the speed of CUDA graphs", replace(settings, enforce_eager=True)
    cards = len(usable(machine.devices)) // (settings.pipeline_parallel * settings.data_parallel)
    for size in range(settings.tensor_parallel + 1, cards + 1):
        if divides_heads(appraisal.model, size):
            yield f"-tp {size}", "other uses of those cards", replace(settings, tensor_parallel=size)

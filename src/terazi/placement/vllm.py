"""vLLM on a machine: how many cards share the model and how, what each holds, and what would fit instead.

In: ``ModelSpec``, ``Machine``, ``Workload``, settings or pins. Out: ``Plan | Refusal``. vLLM takes a share of each
card (92 % unless told) and gives the KV cache what the model leaves of it, so the rest of a card is its reserve.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from terazi.errors import UsageError
from terazi.hardware.machine import Device, Machine
from terazi.memory.vllm.bill import appraise
from terazi.memory.vllm.model import VllmModel, read_model
from terazi.memory.vllm.objections import divides_heads
from terazi.memory.vllm.ranks import free_for_engine
from terazi.memory.vllm.settings import AUTO_LENGTH, DEFAULT_UTILIZATION, VllmSettings
from terazi.memory.vllm.target import usable
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec
from terazi.placement.appraiser import Appraiser
from terazi.placement.capacity import capacity_of
from terazi.placement.plan import Plan, Refusal, Rejected
from terazi.placement.vllm_refuse import refusal_of
from terazi.placement.vllm_trial import Trial, plan_of, served, workload_of
from terazi.units import MIB, format_bytes, pad

#: Cards that one server joins by NVLink or a PCIe switch (HGX boards have eight); tensor parallelism stays inside.
DOMAIN: Final = 8
#: Tensors that are weighed beyond the necessary trial: one of a trillion-parameter model takes a second.
_WEIGHED_TENSORS: Final = 30_000
#: How much better a plan must score that takes more cards, and one whose cache is less precise.
_WORTH: Final = 0.03
_WORTH_LOSSY: Final = 0.15
_SMALLER_CACHE: Final = "fp8"


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
    tried = Trial(spec, machine, settings, 1, draft)
    workload = workload_of(tried, prompt=prompt, output=output)
    if tried.fits:
        return plan_of(spec, machine, tried, workload)
    return refusal_of(spec, machine, tried, workload, users=1)


def solve_vllm(
    spec: ModelSpec,
    machine: Machine,
    workload: Workload,
    pins: Mapping[str, object],
    *,
    appraiser: Appraiser | None = None,
) -> Plan | Refusal:
    """The cards that hold the model and divide its heads, with as long a context as was asked for.

    Tensor parallelism first, as far as one server's cards go, then pipeline stages of such groups. Without an
    *appraiser* the fewest cards win; with one the best score, fewer cards if it is all but as good.

    Args:
        spec: the model.
        machine: its cards; without one that vLLM supports its CPU build is planned for.
        workload: a context of None takes the model's own, or what fits.
        pins: settings that were typed, under their names in ``VllmSettings``.
        appraiser: judges plans that fit.

    Raises:
        UsageError: a pin that isn't vLLM's.
    """
    settings = _pinned(pins)
    model = read_model(spec)
    cards = usable(machine.devices)
    if "gpu_memory_utilization" not in pins:
        settings = replace(settings, gpu_memory_utilization=_free_share(cards))
    least = _least_cards(spec, cards)
    fitting: list[tuple[Trial, Workload]] = []
    lacking: list[Rejected] = []
    nearest: Trial | None = None
    weighed = 0
    for tensor, pipeline in _groups(model, settings, len(cards), least, pins):
        if fitting and (appraiser is None or weighed + len(spec.tensors) > _WEIGHED_TENSORS):
            break
        for tried in _lengths(
            spec, machine, replace(settings, tensor_parallel=tensor, pipeline_parallel=pipeline), workload
        ):
            weighed += len(spec.tensors)
            if tried.fits:
                fitting.append((tried, served(tried, workload)))
                break
            # the one with the most cards, at the length asked for, came nearest
            if nearest is None or tensor * pipeline > nearest.settings.world_size:
                nearest = tried
        else:
            lacking.append(Rejected(option=name_group(tensor, pipeline), why=tried.reason.rstrip(".")))
    if not fitting:
        closest = nearest or Trial(spec, machine, settings, workload.users)
        if least > len(cards) > 0:
            # no setting helps, so none is tried
            said = f"{_why_so_many(spec, cards, least)[0].rstrip('.')}, and there are {len(cards)}."
            refused = refusal_of(spec, machine, closest, workload, users=workload.users, hopeless=said)
            return replace(refused, reason=f"{refused.reason} {_of_unequal(cards)}".strip())
        refused = refusal_of(spec, machine, closest, served(closest, workload), users=workload.users)
        return replace(refused, reason=f"{refused.reason} {_of_unequal(cards)}".strip())
    reasons = _why_so_many(spec, cards, least)
    if len(cards) > DOMAIN and fitting[0][0].settings.pipeline_parallel > 1:
        stages = fitting[0][0].settings.pipeline_parallel
        said = f"One server joins {DOMAIN} cards, and a layer that is cut adds up over all its cards twice a token,"
        said += f" so it is cut no further; {stages} such groups follow each other and hand one hidden state over."
        reasons += (said,)
    smaller = _smaller_cache(spec, machine, fitting[0], workload, pins) if appraiser is not None and cards else None
    if smaller is not None:
        fitting.append(smaller)
    plans = [plan_of(spec, machine, tried, work, reasons) for tried, work in fitting]
    return _best(plans, [t.settings for t, _ in fitting], lacking, appraiser)


def _smaller_cache(
    spec: ModelSpec,
    machine: Machine,
    fitting: tuple[Trial, Workload],
    workload: Workload,
    pins: Mapping[str, object],
) -> tuple[Trial, Workload] | None:
    """The same with a cache in 8 bits, where the usual one cut the context short or makes users wait."""
    tried, work = fitting
    if "kv_cache_dtype" in pins or tried.settings.kv_cache_dtype != "auto":
        return None
    wanted = workload.context or spec.context_length
    if (work.context or 0) >= wanted and not tried.crowded:
        return None
    for other in _lengths(spec, machine, replace(tried.settings, kv_cache_dtype=_SMALLER_CACHE), workload):
        if other.fits:
            return other, served(other, workload)
    return None


def _best(
    plans: Sequence[Plan],
    settings: Sequence[VllmSettings],
    lacking: Sequence[Rejected],
    appraiser: Appraiser | None,
) -> Plan:
    if appraiser is None or len(plans) == 1:
        return replace(plans[0], rejected=tuple(lacking))
    marks = [
        appraiser.score(plan)
        * (1 + _WORTH) ** -(chosen.world_size > settings[0].world_size)
        * (1 + _WORTH_LOSSY) ** -(chosen.kv_cache_dtype != settings[0].kv_cache_dtype)
        for plan, chosen in zip(plans, settings, strict=True)
    ]
    keeping = [i for i, plan in enumerate(plans) if not appraiser.misses(plan)] or range(len(plans))
    best = max(keeping, key=lambda i: (marks[i], -i))
    rejected = [
        Rejected(
            option=name_group(chosen.tensor_parallel, chosen.pipeline_parallel)
            + (f" with a cache in {chosen.kv_cache_dtype}" if chosen.kv_cache_dtype != "auto" else ""),
            why="; ".join(w for w in (appraiser.misses(plan), appraiser.against(plan, plans[best])) if w),
        )
        for i, (plan, chosen) in enumerate(zip(plans, settings, strict=True))
        if i != best
    ]
    return replace(plans[best], rejected=(*(r for r in rejected if r.why), *lacking))


def name_group(tensor: int, pipeline: int) -> str:
    """The ranks in words."""
    if tensor * pipeline == 1:
        return "one card"
    return f"TP {tensor}" if pipeline == 1 else f"TP {tensor} × PP {pipeline}"


def _least_cards(spec: ModelSpec, cards: Sequence[Device]) -> int:
    """So many cards that the weights alone can't be on fewer."""
    largest = max((free_for_engine(card) for card in cards), default=0)
    return max(1, -(-spec.weights_bytes // largest)) if largest else 1


def _why_so_many(spec: ModelSpec, cards: Sequence[Device], least: int) -> tuple[str, ...]:
    if least <= 1:
        return ()
    largest = max(free_for_engine(card) for card in cards)
    size, free = format_bytes(spec.weights_bytes), format_bytes(largest)
    return (f"The weights alone, {size}, need {least} cards of {free} free each.",)


def _of_unequal(cards: Sequence[Device]) -> str:
    """What the smallest of unequal cards does to all, and what takes them as they are."""
    if len({card.memory_total_bytes for card in cards}) < 2:
        return ""
    least = min(cards, key=free_for_engine)
    return (
        f"vLLM gives every card an equal part, so {least.id} with {format_bytes(free_for_engine(least))} free caps"
        " them all; llama.cpp gives each what it has room for: weigh a GGUF of this model, e.g. hf:ORG/REPO-GGUF."
    )


def _groups(
    model: VllmModel, settings: VllmSettings, cards: int, least: int, pins: Mapping[str, object]
) -> Iterator[tuple[int, int]]:
    """Sizes of (tensor, pipeline) groups to try, fewest cards first, the larger tensor group first."""
    if "tensor_parallel" in pins:
        yield settings.tensor_parallel, settings.pipeline_parallel
        return
    if not cards:
        yield 1, settings.pipeline_parallel
        return
    sizes = [n for n in range(1, min(cards, DOMAIN) + 1) if n == 1 or divides_heads(model, n)]
    if "pipeline_parallel" in pins:
        stages = settings.pipeline_parallel
        fitting = [n for n in sizes if n * stages <= cards]
        yield from ((n, stages) for n in fitting or sizes[:1])
        return
    groups = [
        (tensor, pipeline)
        for tensor in sizes
        for pipeline in range(1, min(cards // tensor, model.layers) + 1)
        if tensor * pipeline >= min(least, cards)
        and (pipeline == 1 or tensor == sizes[-1] or tensor * pipeline <= 4)
    ]
    yield from sorted(groups, key=lambda g: (g[0] * g[1], g[1]))


def _free_share(cards: tuple[Device, ...]) -> float:
    """vLLM's usual share of a card, or as much as is free on the fullest of *cards*, in hundredths."""
    free = min((free_for_engine(c) / c.memory_total_bytes for c in cards if c.memory_total_bytes), default=1.0)
    return min(DEFAULT_UTILIZATION, max(1, int(100 * free)) / 100)


def _lengths(spec: ModelSpec, machine: Machine, settings: VllmSettings, workload: Workload) -> Iterator[Trial]:
    """*settings* with the context that was asked for; if none was, the model's own, then as much as fits."""
    cards = usable(machine.devices)
    wanted = [workload.context] if workload.context is not None else [None, AUTO_LENGTH]
    for length in wanted if settings.max_model_len is None else [settings.max_model_len]:
        chosen = replace(settings, max_model_len=length)
        if not cards and settings.kv_cache_memory_bytes is None:
            chosen = _with_cpu_cache(spec, machine, chosen, workload)
        tried = Trial(spec, machine, chosen, workload.users)
        pool = tried.appraisal.pool
        if length == AUTO_LENGTH and pool is not None and pool.longest:
            # what fits is said as a number, so that the same command gives the same plan
            share = max(1, pool.longest // workload.users)
            tried = Trial(spec, machine, replace(chosen, max_model_len=share), workload.users)
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
    if name == "pipeline_parallel" and isinstance(value, int):
        return replace(settings, pipeline_parallel=value)
    raise UsageError(f"{name} can't be pinned for vLLM", hint="put it into a command: terazi weigh -- vllm serve …")

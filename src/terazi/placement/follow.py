"""Weighs a ready command line: its settings stay as they are.

In: ``ModelSpec``, ``Machine``, ``LlamaCppSettings``. Out: ``Plan | Refusal``. The layers lie where the engine's own
rule puts them.
"""

from dataclasses import fields, replace

from terazi.hardware.machine import Machine
from terazi.memory.companion import Companion
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec
from terazi.placement.capacity import capacity_of
from terazi.placement.explain import explain_layout
from terazi.placement.identity import plan_id
from terazi.placement.judge import growth_reason, judge, memlock_reason
from terazi.placement.plan import Plan, Refusal

#: Where the layers lie is the command's, or the engine's, choice.
_LAYOUT = frozenset({"n_gpu_layers", "devices", "tensor_split", "split_mode", "main_gpu"})
#: What an alternative to a command line may change; everything else that differs from the default stays pinned.
_NEGOTIABLE = frozenset({"n_ctx", "n_parallel", "n_ubatch", "type_k", "type_v", "cache_ram_mib", "ctx_checkpoints"})


def follow(
    spec: ModelSpec,
    machine: Machine,
    settings: LlamaCppSettings,
    workload: Workload,
    companions: tuple[Companion, ...] = (),
) -> Plan | Refusal:
    """What exactly this configuration holds on each device, and whether that fits.

    *companions* are the files that the command loads beside the model.

    Raises:
        UsageError: for settings that llama.cpp itself refuses.
    """
    if companions:
        from terazi.memory.llama_cpp.draft import settle

        settings = settle(settings, companions)
    capacity = capacity_of(machine)
    judged = judge(spec, machine, settings, capacity, companions)
    if not judged.shortfall:
        warnings = [w for w in (growth_reason(judged), memlock_reason(judged, machine)) if w]
        return Plan(
            id=plan_id(spec, machine, settings, companions),
            engine=judged.bill.engine,
            settings=settings,
            workload=workload,
            verdict=judged.verdict,
            devices=judged.shares,
            bill=judged.bill,
            reasons=(*explain_layout(machine, judged, _LAYOUT), *warnings, *judged.bill.reasons),
        )
    # a command line that fits spares these imports
    from terazi.placement.refuse import refuse
    from terazi.placement.scales import Scales
    from terazi.placement.search import Search

    default = LlamaCppSettings()
    pins = {
        f.name: getattr(settings, f.name)
        for f in fields(settings)
        if f.name not in _NEGOTIABLE and getattr(settings, f.name) != getattr(default, f.name)
    }
    search = Search(
        spec=spec,
        machine=machine,
        capacity=capacity,
        pins=pins,
        scales=Scales(machine.host.isa),
        companions=companions,
    )
    # alternatives are said with the figures that the engine would have used, not with "default"
    explicit = replace(
        settings,
        n_ctx=judged.resolved.n_ctx,
        n_parallel=judged.resolved.n_seq_max,
        kv_unified=judged.resolved.unified and judged.resolved.n_seq_max > 1,
    )
    return refuse(search, workload, explicit, judged)

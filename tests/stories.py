"""Questions that people ask before they buy or load, answered by the code: for a test and a page of the guide."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from specs import llama_spec
from terazi.hardware.presets import parse_machine
from terazi.hardware.probe import load_catalogue
from terazi.memory.bill import HOST
from terazi.memory.workload import Workload
from terazi.models.from_config import build_config_spec
from terazi.models.hf_config import parse_config
from terazi.models.spec import ModelSpec
from terazi.performance.appraiser import Appraiser
from terazi.placement.plan import Plan, Refusal
from terazi.placement.solve import solve
from terazi.placement.vllm import solve_vllm
from terazi.units import format_bytes, format_seconds

#: A config like that of Kimi K2, written down from memory: 61 layers of 384 experts, in FP8.
KIMI_K2: Mapping[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "first_k_dense_replace": 1,
    "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 131072,
    "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 384,
    "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 64, "num_experts_per_tok": 8,
    "num_hidden_layers": 61, "num_key_value_heads": 64, "num_nextn_predict_layers": 0, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-6, "rope_theta": 50000.0,
    "quantization_config": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128],
    },
    "routed_scaling_factor": 2.827, "scoring_func": "sigmoid", "tie_word_embeddings": False, "topk_group": 1,
    "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "v_head_dim": 128, "vocab_size": 163840,
}  # fmt: skip


def q4_k_m(spec: ModelSpec) -> ModelSpec:
    """*spec*, which is all Q4_K, with Q6_K where that recipe has it (``use_more_bits`` in ``llama-quant.cpp``)."""
    n = spec.block_count

    def typed(index: int, name: str) -> bool:
        more = index < n // 8 or index >= 7 * n // 8 or (index - n // 8) % 3 == 2
        return more and name.endswith(("attn_v.weight", "ffn_down.weight"))

    tensors = tuple(
        replace(t, dtype="Q6_K", n_bytes=t.n_bytes * 210 // 144)
        if t.block is not None and typed(t.block, t.name)
        else t
        for t in spec.tensors
    )
    return replace(spec, tensors=tensors, quantisation="Q4_K_M")


def llama_70b() -> ModelSpec:
    """Llama 3.3 70B in Q4_K_M."""
    return replace(q4_k_m(llama_spec(layers=80, embedding=8192, feed_forward=28672, heads=64)), name="70B Q4_K_M")


def llama_13b() -> ModelSpec:
    """Llama 2 13B in Q4_K_M: every head has a cache of its own."""
    spec = llama_spec(
        layers=40, embedding=5120, feed_forward=13824, heads=40, kv_heads=40, vocab=32000, context=4096
    )
    return replace(q4_k_m(spec), name="13B Q4_K_M")


def llama_34b() -> ModelSpec:
    """Code Llama 34B in Q4_K_M."""
    spec = llama_spec(layers=48, embedding=8192, feed_forward=22016, heads=64, vocab=32000, context=16384)
    return replace(q4_k_m(spec), name="34B Q4_K_M")


def llama_8b() -> ModelSpec:
    """Llama 3.1 8B in Q4_K_M."""
    return replace(q4_k_m(llama_spec()), name="8B Q4_K_M")


def kimi_k2() -> ModelSpec:
    """A trillion parameters, from the config alone."""
    return build_config_spec(parse_config(json.dumps(KIMI_K2).encode(), "kimi-k2"), name="Kimi K2 FP8")


_INTRODUCTION = """\
What fits where, how fast it should be, and why: the same code that `terazi weigh` runs, on machines by name.
Figures of speed are the middle of an 80 % interval.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """One question: *title*, the model, the machine as a preset, the workload, and who serves it."""

    title: str
    model: Callable[[], ModelSpec]
    on: str
    workload: Workload
    engine: str = "llama.cpp"
    pins: Mapping[str, object] = field(default_factory=dict)


_CHAT = Workload(context=8192, prompt=1024, output=256)

#: Llama 3.1 70B in AWQ: what vLLM can hold on two 24 GB cards.
AWQ_70B: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672,
    "max_position_embeddings": 131072, "num_attention_heads": 64, "num_hidden_layers": 80,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False,
    "torch_dtype": "float16", "vocab_size": 128256,
    "quantization_config": {
        "bits": 4, "group_size": 128, "quant_method": "awq", "version": "gemm", "zero_point": True,
    },
}  # fmt: skip


def awq_70b() -> ModelSpec:
    """From the config alone."""
    return build_config_spec(parse_config(json.dumps(AWQ_70B).encode(), "llama-awq"), name="70B AWQ")


_SERVED = Workload(context=4096, users=3, prompt=1024, output=256)

STORIES: Mapping[str, Story] = {
    "70b-pair": Story(title="70B on two RTX 3090", model=llama_70b, on="2x RTX 3090 + 64GiB", workload=_CHAT),
    "70b-nvlink": Story(
        title="The same with an NVLink bridge", model=llama_70b, on="2x RTX 3090 nvlink + 64GiB", workload=_CHAT
    ),
    "70b-vllm": Story(
        title="Three users of 70B on two RTX 3090",
        model=awq_70b,
        on="2x RTX 3090 + 64GiB",
        workload=_SERVED,
        engine="vllm",
    ),
    "70b-vllm-nvlink": Story(
        title="The three users with an NVLink bridge",
        model=awq_70b,
        on="2x RTX 3090 nvlink + 64GiB",
        workload=_SERVED,
        engine="vllm",
    ),
    "70b-24-12": Story(
        title="70B on 24 + 12 GB", model=llama_70b, on="RTX 3090 + RTX 3060 12GB + 64GiB", workload=_CHAT
    ),
    "70b-12-12": Story(
        title="70B on two 12 GB cards", model=llama_70b, on="2x RTX 3060 12GB + 64GiB", workload=_CHAT
    ),
    "13b-12": Story(
        title="13B on one 12 GB card",
        model=llama_13b,
        on="RTX 3060 12GB + 32GiB",
        workload=Workload(context=2048, prompt=1024, output=256),
    ),
    "13b-8-8": Story(
        title="13B on two 8 GB cards",
        model=llama_13b,
        on="2x RTX 3070 + 32GiB",
        workload=Workload(context=2048, prompt=1024, output=256),
    ),
    "34b-24": Story(title="34B on one 24 GB card", model=llama_34b, on="RTX 3090 + 64GiB", workload=_CHAT),
    "8b-128k": Story(
        title="128k of context on one 24 GB card",
        model=llama_8b,
        on="RTX 3090 + 64GiB",
        workload=Workload(context=131072, prompt=100_000, output=500),
    ),
    "70b-128k": Story(
        title="70B at 128k on two 24 GB cards",
        model=llama_70b,
        on="2x RTX 3090 + 128GiB",
        workload=Workload(context=131072, prompt=100_000, output=500),
    ),
    "kimi-8": Story(
        title="A trillion parameters on eight H100",
        model=kimi_k2,
        on="8x H100 SXM nvlink + 2TiB",
        workload=Workload(context=32768, users=8, prompt=2048, output=512),
        engine="vllm",
    ),
    "kimi-16": Story(
        title="A trillion parameters on sixteen H100",
        model=kimi_k2,
        on="16x H100 SXM nvlink + 4TiB",
        workload=Workload(context=32768, users=8, prompt=2048, output=512),
        engine="vllm",
    ),
}


def answer(story: Story) -> tuple[Plan | Refusal, Appraiser]:
    """The plan or the refusal, and who can tell how fast it is."""
    spec = story.model()
    machine = parse_machine(story.on, load_catalogue())
    appraiser = Appraiser(spec, machine, story.workload)
    if story.engine == "vllm":
        return solve_vllm(spec, machine, story.workload, story.pins, appraiser=appraiser), appraiser
    return solve(spec, machine, story.workload, story.pins, score=appraiser), appraiser


def page() -> str:
    """All of them, as a page of the guide."""
    parts = [
        "# Worked stories\n",
        _INTRODUCTION,
    ]
    for story in STORIES.values():
        outcome, appraiser = answer(story)
        parts.append(told(story, outcome, appraiser))
    return "\n".join(parts)


def told(story: Story, outcome: Plan | Refusal, appraiser: Appraiser) -> str:
    """One story in Markdown."""
    work = story.workload
    asked = f"context {work.context}, {work.users} user{'s' * (work.users > 1)}"
    lengths = f"prompts of {work.prompt} and answers of {work.output} tokens"
    lines = [f"## {story.title}\n", f'`--on "{story.on}"`, {story.engine}, {asked}, {lengths}.\n']
    if isinstance(outcome, Refusal):
        lines.append(f"**Refused.** {outcome.reason}\n")
        lines += [f"- {a.change}: gives up {a.gives_up}" for a in outcome.alternatives]
        return "\n".join([*lines, ""])
    said = appraiser.forecast(outcome)
    watts = "" if said.power_w is None else f", {said.power_w.mid:.0f} W"
    lines.append(
        f"**{outcome.verdict.value}**: {said.decode_tok_s.mid:.3g} tok/s for one stream,"
        f" {said.throughput_tok_s.mid:.3g} for all, first token after {format_seconds(said.ttft_s.mid)}{watts}.\n"
    )
    lines += [
        f"- {s.id}: {format_bytes(s.total_bytes)} held, {format_bytes(s.headroom_bytes)} free"
        for s in outcome.devices
        if s.total_bytes and (s.id != HOST or outcome.bill.engine != "vllm")
    ]
    lines += ["", "Why so:\n", *(f"- {reason}" for reason in outcome.reasons)]
    if outcome.rejected:
        lines += ["", "Not taken:\n", *(f"- {r.option}: {r.why}" for r in outcome.rejected)]
    return "\n".join([*lines, ""])

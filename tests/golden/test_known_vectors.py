"""Figures that others have published or logged, each with where it comes from: the bill must give them.

These are the cases that planners got wrong. The models are built from their published hyperparameters
(``golden/bill_cases.json``, ``specs.py``); "as measured" means llama.cpp b11434 itself on stand-in devices.
"""

from pathlib import Path

import pytest

import bill_cases
from specs import card, llama_spec
from terazi.engines.llama_cpp.commands import parse_command
from terazi.hardware.machine import Device
from terazi.memory.bill import HOST, Bill, Term
from terazi.memory.llama_cpp.bill import weigh
from terazi.memory.llama_cpp.estimate import estimate
from terazi.memory.llama_cpp.resolve import resolve
from terazi.models.spec import ModelSpec
from terazi.units import GIB, MIB

MODELS = bill_cases.load(Path(__file__).with_name("bill_cases.json"))


def bill_of(
    model: str | ModelSpec, command: str, *, stand_ins: int = 0, devices: tuple[Device, ...] | None = None
) -> Bill:
    """The bill of *command*, which lacks only the model."""
    tool, *arguments = command.split()
    settings = parse_command([tool, "-m", "m.gguf", *arguments]).settings
    spec = MODELS[model].spec if isinstance(model, str) else model
    there = bill_cases.stand_ins(stand_ins) if devices is None else devices
    return weigh(spec, settings, there, frozenset({"avx2", "fma"}))


def formulas(bill: Bill, device: str = HOST) -> dict[str, float]:
    """MiB by formula on *device*, to the two decimals that the engine prints."""
    sums: dict[str, int] = {}
    for line in bill.lines:
        if line.device == device:
            sums[line.formula] = sums.get(line.formula, 0) + line.bytes
    return {formula: round(n / MIB, 2) for formula, n in sums.items()}


# --- caches and states ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "command", "formula", "mib", "source"),
    [
        # a hybrid: 16 of 64 layers have a cache, 48 a state a slot (UI of LM Studio: 75 GB against 47 GB)
        ("qwen3.5-27b", "llama-server -c 262144", "kv.full", 16384.00, "lmstudio-bug-tracker#1862, Qwen3.6-27B"),
        ("qwen3.5-27b", "llama-server -c 262144", "state.slots", 598.50, "lmstudio-bug-tracker#1862, Qwen3.6-27B"),
        # head counts a layer: most of them have no attention (gguf-parser 0.25 estimated 0)
        ("lfm2-1.2b", "llama-server -c 32768 -np 1", "kv.full", 384.00, "gguf-parser-go#31 and #35"),
        # every second layer sees 128 tokens only
        ("gpt-oss-20b", "llama-server -c 131072 -np 1", "kv.full", 3072.00, "llama-kv-cache-iswa.cpp's own log"),
        ("gpt-oss-20b", "llama-server -c 131072 -np 1", "kv.window", 18.00, "llama-kv-cache-iswa.cpp's own log"),
        # five of six layers see 1024 tokens; heads wider than embedding / heads
        ("gemma-3-27b", "llama-server -c 131072 -np 1", "kv.full", 10240.00, "llama-kv-cache-iswa.cpp's own log"),
        ("gemma-3-27b", "llama-server -c 131072 -np 1", "kv.window", 624.00, "llama-kv-cache-iswa.cpp's own log"),
        # a state for each slot, whatever -c says: 263.5 MiB for one
        ("mamba-codestral-7b", "llama-server -np 1", "state.slots", 263.50, "as measured"),
        ("mamba-codestral-7b", "llama-server", "state.slots", 1054.00, "as measured"),
    ],
)  # fmt: skip
def test_cache(model: str, command: str, formula: str, mib: float, source: str) -> None:
    assert formulas(bill_of(model, command))[formula] == mib, source


@pytest.mark.parametrize(
    ("settings", "mib"),
    [
        ("-np 1", 3184),
        ("-np 1 -ub 2048", 3808),
        ("-np 4 --no-kv-unified", 5056),
        ("-np 8 --kv-unified", 6096),
        ("-np 1 --swa-full", 15872),
    ],
)
def test_window_cells_follow_slots_and_micro_batch(settings: str, mib: int) -> None:
    """Gemma 3 27B at 32768, as measured: ``min(n_ctx, window × unified slots + n_ubatch)``, padded to 256."""
    assert bill_of("gemma-3-27b", f"llama-server -c 32768 {settings}").on(HOST).kv_bytes == mib * MIB


def test_latent_attention_keeps_one_row_a_token() -> None:
    """DeepSeek-V3 in f16: 61 layers of 576 elements, no V (gguf-parser 0.25: 320 elements, 44 % too little)."""
    small, large = (bill_of("deepseek-v3", f"llama-server -np 1 -c {n}").on(HOST).kv_bytes for n in (4096, 8192))
    assert (large - small) / 4096 == 70_272
    assert small == 4096 * 70_272


def test_hybrid_on_a_real_card() -> None:
    """Qwen3.6-27B Q4_K_M, one slot of 65536 in q8_0 on an A40: the engine took 17.6 GiB, a planner said 24.83.

    Source: lilbee#721 (gguf-parser-go#28). The A40 has 84 SMs; its driver context is an estimate.
    """
    a40 = card(name="A40", gib=48)
    bill = bill_of("qwen3.5-27b", "llama-server -c 65536 -np 1 -ctk q8_0 -ctv q8_0 -ngl 99", devices=(a40,))
    assert bill.on("CUDA0").total_bytes / GIB == pytest.approx(17.6, abs=0.15)


# --- layers and weights --------------------------------------------------------------------------------


def test_the_output_is_the_first_layer_to_be_offloaded() -> None:
    """OLMoE-1B-7B Q4_K_M at -ngl 1: ``ROCm0 model buffer size = 80.60`` (gguf-parser-go#42); no block moves."""
    olmoe = llama_spec(
        architecture="olmoe",
        layers=16,
        embedding=2048,
        feed_forward=1024,
        heads=16,
        kv_heads=16,
        vocab=50304,
        context=4096,
        experts=64,
        experts_used=8,
    )
    bill = bill_of(olmoe, "llama-server -c 4096 -np 1 -ngl 1", stand_ins=1)
    assert formulas(bill, "RPC0")["weights.device"] == 80.60
    assert bill.on("RPC0").kv_bytes == 0


def test_the_output_counts_as_a_layer_of_the_split() -> None:
    """-ts 1,1 over 32 layers is 17 and 15, and the output, as measured (``load_tensors``)."""
    settings = parse_command(["llama-server", "-m", "m", "-ngl", "99", "-ts", "1,1"]).settings
    layers = resolve(MODELS["llama-3.1-8b"].spec, settings, bill_cases.stand_ins(2)).layer_devices
    assert layers == ("RPC0",) * 17 + ("RPC1",) * 16


def test_uneven_split_of_a_70b() -> None:
    """Llama 3.3 70B Q4_K_M, -ngl 60 -ts 2,1 -c 16384: what llama-fit-params prints for caches and compute."""
    command = "llama-fit-params -m m --rpc a:1,b:1 -ngl 60 -ts 2,1 -c 16384"
    settings = parse_command(command.split()).settings
    table = estimate(MODELS["llama-3.3-70b"].spec, settings, bill_cases.stand_ins(2), frozenset({"avx2"}))
    printed = {
        device: tuple(sum(n for _, n in figure) // MIB for figure in (row.context, row.compute))
        for device, row in table.items()
    }
    assert printed == {"RPC0": (2560, 216), "RPC1": (1216, 266), HOST: (1344, 264)}


def test_a_tied_embedding_that_the_estimate_counts_twice() -> None:
    """Gemma 4 31B on the CPU, as measured: 1102.5 MiB more in the estimate than in a load that maps the file."""
    loaded = bill_of("gemma-4-31b", "llama-server -c 4096 --no-repack")
    estimated = bill_of("gemma-4-31b", "llama-fit-params -c 4096 --no-repack")
    assert (estimated.on(HOST).weights_bytes - loaded.on(HOST).weights_bytes) / MIB == 1102.5


def test_a_tied_embedding_is_there_twice_once_a_device_is() -> None:
    """Gemma 3 27B: on the host for the tokens, on the device for the logits (``create_tensor``, duplicated)."""
    spec = MODELS["gemma-3-27b"].spec
    embedding = next(t.n_bytes for t in spec.tensors if t.name == "token_embd.weight")
    bill = bill_of("gemma-3-27b", "llama-server -c 4096 -np 1 -ngl 99", stand_ins=1)
    assert bill.on(HOST).weights_bytes == embedding
    assert sum(bill.on(d).weights_bytes for d in bill.devices()) == pytest.approx(
        spec.weights_bytes + embedding, rel=1e-4
    )


# --- compute and what stays on the host ----------------------------------------------------------------


def test_a_server_reserves_logits_for_its_slots_only() -> None:
    """Gemma 3 27B at 32768 on the CPU, as measured: 608.65 MiB for llama-fit-params, 215.03 for llama-server."""
    assert formulas(bill_of("gemma-3-27b", "llama-fit-params -c 32768"))["compute.replay"] == 608.65
    assert formulas(bill_of("gemma-3-27b", "llama-server -c 32768"))["compute.replay"] == 215.03


def test_a_reranker_is_no_language_model() -> None:
    """bge-reranker-v2-m3 FP16, -c 8192 -ngl 99: 926 MiB of VRAM with the driver's context; a planner said 13.8 GiB.

    Source: gpustack#2412, gguf-parser-go#2. Which card it was isn't said, and its driver's context is a third of
    it. bge-m3 has the same shape.
    """
    bill = bill_of("bge-m3", "llama-server -c 8192 -np 1 --reranking -ngl 99", devices=(card(),))
    assert bill.on("CUDA0").total_bytes / MIB == pytest.approx(926, rel=0.10)
    assert sum(line.bytes for line in bill.lines if line.term is Term.KV) == 0


def test_logits_are_read_from_host_memory() -> None:
    """A slot's row of logits lies on the host, not on the card (lilbee#761: 65.8 % too much for Qwen3-0.6B)."""
    for slots in (1, 4):
        bill = bill_of("qwen2.5-7b", f"llama-server -c 4096 -np {slots} -ngl 99", stand_ins=1)
        spec = MODELS["qwen2.5-7b"].spec
        assert formulas(bill)["output-buffer"] == round(4 * slots * spec.vocab_size / MIB, 2)
        assert "output-buffer" not in formulas(bill, "RPC0")


def test_the_mask_is_of_half_precision_now() -> None:
    """Before May 2026 a host of 150000 cells and 4096 tokens held a mask of 2344 MiB (llama.cpp#23764, #23861).

    Since then it is 16 bits wide, so the same shape has 1172 MiB of it in the host's buffer, and not 2344.
    """
    bill = bill_of("qwen3-next-80b-a3b", "llama-server -c 150000 -np 1 -b 4096 -ub 4096 -ngl 99", stand_ins=1)
    mask = 150_016 * 4096 * 2 / MIB
    assert mask == 1172
    assert mask <= formulas(bill)["compute.replay"] < 1.5 * mask


def test_four_copies_of_the_inputs_on_several_devices() -> None:
    """Pipeline mode keeps the mask four times on each card; one -ot turns it off (llama.cpp#16748, #24355)."""
    command = "llama-server -c 65536 -np 1 -ub 2048 -ngl 99 -ts 1,1"
    piped = bill_of("llama-3.1-8b", command, stand_ins=2)
    plain = bill_of("llama-3.1-8b", f"{command} -ot blk.0.ffn_up=RPC0[a:1] --rpc a:1,b:1", stand_ins=2)
    mask = 65536 * 2048 * 2
    for device in ("RPC0", "RPC1"):
        gap = piped.on(device).compute_bytes - plain.on(device).compute_bytes
        assert 3 * mask <= gap < 5 * mask, device

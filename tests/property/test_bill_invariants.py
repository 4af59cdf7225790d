"""What must hold for every bill, whatever the model and the settings."""

from dataclasses import replace
from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from terazi.engines.llama_cpp.commands import parse_command
from terazi.engines.llama_cpp.flags import flag_values
from terazi.errors import UsageError
from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.allocator import Arena
from terazi.memory.llama_cpp.bill import weigh
from terazi.memory.llama_cpp.layers import assign_layers
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.models.spec import ModelSpec
from tiny_models import device, llama

AVX2 = frozenset({"avx2"})
NAMES = ("RPC0", "RPC1", "CUDA0", "CUDA1")

models = st.builds(
    llama,
    blocks=st.integers(1, 6),
    width=st.sampled_from([256, 512]),
    heads=st.sampled_from([4, 8]),
    kv_heads=st.sampled_from([1, 2, 4]),
    inner=st.sampled_from([256, 1024]),
    vocab=st.integers(8, 4000),
    dtype=st.sampled_from(["q4_0", "q4_K", "q6_K", "q8_0", "f16"]),
    tied=st.booleans(),
    rope_factors=st.booleans(),
    experts=st.sampled_from([0, 4]),
)
layouts = st.lists(st.sampled_from(NAMES), unique=True, max_size=3).map(
    lambda names: tuple(device(name, backend=name[:-1].lower()) for name in sorted(names, reverse=True))
)
settings = st.builds(
    LlamaCppSettings,
    n_ctx=st.integers(16, 20000),
    n_parallel=st.one_of(st.none(), st.integers(1, 9)),
    kv_unified=st.one_of(st.none(), st.booleans()),
    n_batch=st.integers(16, 3000),
    n_ubatch=st.integers(1, 3000),
    flash_attn=st.sampled_from(["on", "off", "auto"]),
    type_k=st.sampled_from(["f16", "q8_0", "bf16"]),
    n_gpu_layers=st.one_of(st.none(), st.integers(0, 9)),
    kv_offload=st.booleans(),
    load_mode=st.sampled_from(["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"]),
    repack=st.booleans(),
    op_offload=st.booleans(),
    cpu_moe=st.booleans(),
    fit=st.just(False),
)


@given(spec=models, settings=settings, devices=layouts)
def test_a_bill_is_the_sum_of_its_lines(spec: ModelSpec, settings: LlamaCppSettings, devices: tuple) -> None:  # type: ignore[type-arg]
    bill = weigh(spec, settings, devices, AVX2)
    assert bill.total_bytes == sum(line.bytes for line in bill.lines)
    assert bill.total_bytes == sum(bill.on(name).total_bytes for name in bill.devices())
    assert all(line.bytes >= 0 for line in (*bill.lines, *bill.growth))
    assert set(bill.devices()) <= {HOST, *(d.id for d in devices)}
    # every weight is somewhere
    held = sum(bill.on(name).weights_bytes for name in bill.devices())
    assert held >= spec.weights_bytes


@given(spec=models, settings=settings, devices=layouts, more=st.integers(1, 40))
def test_more_context_never_shrinks_a_cache(
    spec: ModelSpec,
    settings: LlamaCppSettings,
    devices: tuple,  # type: ignore[type-arg]
    more: int,
) -> None:
    longer = replace(settings, n_ctx=settings.n_ctx + 256 * more)
    before, after = weigh(spec, settings, devices, AVX2), weigh(spec, longer, devices, AVX2)
    for name in before.devices():
        assert after.on(name).kv_bytes >= before.on(name).kv_bytes
        assert after.on(name).weights_bytes == before.on(name).weights_bytes


@given(spec=models, more=st.integers(1, 60), slots=st.integers(1, 8), devices=layouts)
def test_more_context_or_more_slots_never_shrink_a_bill(
    spec: ModelSpec,
    more: int,
    slots: int,
    devices: tuple,  # type: ignore[type-arg]
) -> None:
    base = LlamaCppSettings(n_ctx=1024, n_parallel=1, kv_unified=True, fit=False)
    total = weigh(spec, base, devices, AVX2).total_bytes
    assert weigh(spec, replace(base, n_ctx=1024 + 256 * more), devices, AVX2).total_bytes >= total
    assert weigh(spec, replace(base, n_parallel=slots), devices, AVX2).total_bytes >= total
    # separate caches of the same length each
    apart = replace(base, n_parallel=slots, kv_unified=False, n_ctx=1024 * slots)
    assert weigh(spec, apart, devices, AVX2).total_bytes >= total


@given(
    blocks=st.integers(1, 200),
    ngl=st.one_of(st.none(), st.integers(0, 250)),
    split=st.lists(st.floats(0, 100, width=32), max_size=4),
    count=st.integers(0, 4),
)
def test_layer_map_covers_every_layer_once_in_order(
    blocks: int, ngl: int | None, split: list[float], count: int
) -> None:
    devices = tuple(device(name) for name in NAMES[:count])
    layers = assign_layers(LlamaCppSettings(n_gpu_layers=ngl, tensor_split=tuple(split)), devices, blocks)
    assert len(layers) == blocks + 1
    runs = [name for name, _ in groupby(layers)]
    order = [HOST, *(d.id for d in devices)]
    assert runs == sorted(runs, key=order.index)
    assert len(runs) == len(set(runs))
    wanted = 0 if not devices else min(blocks + 1 if ngl is None else ngl, blocks + 1)
    assert sum(name != HOST for name in layers) == wanted


@given(st.lists(st.one_of(st.integers(1, 50), st.none()), max_size=60), st.randoms(use_true_random=False))
def test_arena_never_hands_out_the_same_byte_twice(steps: list[int | None], choice) -> None:  # type: ignore[no-untyped-def]
    arena = Arena()
    live: dict[int, int] = {}
    for step in steps:
        if step is None and live:
            address = choice.choice(sorted(live))
            arena.release(address, live.pop(address))
        elif step is not None:
            size = 32 * step
            address = arena.take(size)
            assert all(address + size <= other or other + length <= address for other, length in live.items())
            live[address] = size
            assert arena.peak >= address + size
    for address, size in live.items():
        arena.release(address, size)
    assert len(arena.blocks) == 1


ASCII = [chr(code) for code in range(32, 127)]
words = st.one_of(
    st.sampled_from(sorted(flag_values("llama-server"))),
    st.sampled_from(["0", "1", "-1", "4096", "on", "off", "auto", "q8_0", "1,2", "none", "x=CPU", "all", ""]),
    st.lists(st.sampled_from(ASCII), max_size=8).map("".join),
)


@given(
    tool=st.sampled_from(["llama-server", "llama-cli", "llama-fit-params"]),
    argv=st.lists(words, max_size=12),
    environment=st.dictionaries(
        st.sampled_from(["LLAMA_ARG_CTX_SIZE", "LLAMA_ARG_NO_REPACK", "LLAMA_ARG_FIT", "LLAMA_ARG_DEVICE", "HOME"]),
        st.lists(st.sampled_from(ASCII), max_size=5).map("".join),
    ),
)
def test_any_words_are_read_or_refused_with_a_hint(tool: str, argv: list[str], environment: dict[str, str]) -> None:
    try:
        command = parse_command([tool, *argv], environment)
    except UsageError as error:
        if not (error.message and error.hint):
            raise AssertionError("an error without a hint") from error
        return
    known = flag_values(tool)
    for flag in command.unknown_flags:
        assert flag.replace("_", "-") not in known or not flag.startswith("--")
    assert command.settings.tool == tool
    # reading is a function of its input
    assert parse_command([tool, *argv], environment) == command

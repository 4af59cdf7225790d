"""Commands of Phi-4 that the engine was seen to abort on, and their neighbours that it loads."""

from dataclasses import replace
from pathlib import Path

import pytest

import bill_cases
from terazi.engines.llama_cpp.commands import parse_command
from terazi.errors import ModelFileError, UsageError
from terazi.memory.llama_cpp.bill import weigh

MODELS = bill_cases.load(Path(__file__).parents[3] / "golden" / "bill_cases.json")
PHI4 = MODELS["phi-4-14b"]


def weigh_phi4(options: str, devices: int = 0) -> None:
    command = ["llama-fit-params", "-c", "16384", *options.split()]
    weigh(PHI4.spec, parse_command(command).settings, bill_cases.stand_ins(devices), PHI4.isa)


@pytest.mark.parametrize(
    ("options", "devices"),
    [
        ("-np 2 -fa on -ctk q8_0 -ctv q8_0", 0),
        ("--rpc a:1,b:1,c:1 -ngl 999 -ts 5,3,2 -fa on -ctk q8_0 -ctv q8_0 -np 4", 3),
    ],
)
def test_refuses_what_the_engine_aborts_on(options: str, devices: int) -> None:
    with pytest.raises(UsageError, match="would abort"):
        weigh_phi4(options, devices)


@pytest.mark.parametrize(
    "options",
    [
        "-np 1 -fa on -ctk q8_0 -ctv q8_0",
        "-np 2 -fa on -ctk q8_0",
        "-np 2 -fa on -ctv q8_0",
        "-np 4 -fa off -ctk q8_0",
    ],
)
def test_allows_what_the_engine_loads(options: str) -> None:
    weigh_phi4(options)


@pytest.mark.parametrize("counts", ["head_count_kv", "both"])
def test_refuses_head_counts_that_the_keys_contradict(counts: str) -> None:
    """As if a converter had left a key out: the engine finds tensors of another shape than it expects."""
    spec = MODELS["llama-3.1-8b"].spec
    none = (0,) * spec.block_count
    broken = replace(spec, head_count_kv=spec.head_count)
    if counts == "both":
        broken = replace(spec, head_count=none, head_count_kv=none)
    settings = parse_command(["llama-server", "-m", "m.gguf", "-c", "4096"]).settings
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_k\.weight has 1024"):
        weigh(broken, settings, (), frozenset())

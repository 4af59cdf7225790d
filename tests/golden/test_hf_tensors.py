"""The tensors that a config makes, against those that ``transformers`` itself builds from it."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from terazi.models.from_config import build_config_spec
from terazi.models.hf_config import parse_config
from terazi.models.hf_families import families

CASES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("hf_tensors.json").read_text())["cases"]
#: Held against a family of the same classes: these only bear another name in ``model_type``.
TWINS = {"kimi_k2", "qwen2_5_vl_text", "qwen3_vl_text"}
#: In memory experts are stacked and some are renamed; in files they are not.
_RENAMED = (
    (re.compile(r"\.(?:mlp|block_sparse_moe)\."), ".ff."),
    (re.compile(r"\.ff\.(?:input|output)_linear\.weight$"), ".ff.experts"),
    (re.compile(r"router\.layer\."), "router."),
    (
        re.compile(r"experts(?:\.\d+)?\.(?:gate_proj|up_proj|down_proj|gate_up_proj|w[123])(?:\.weight)?$"),
        "experts",
    ),
)


def elements(tensors: Mapping[str, Any]) -> dict[str, int]:
    """How many elements each tensor has, a layer's experts taken together."""
    sums: dict[str, int] = {}
    for name, shape in tensors.items():
        known = name
        for pattern, replacement in _RENAMED:
            known = pattern.sub(replacement, known)
        sums[known] = sums.get(known, 0) + math.prod(shape)
    return sums


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["config"]["model_type"])
def test_tensors_of_a_family(case: dict[str, Any]) -> None:
    config = case["config"]
    spec = build_config_spec(parse_config(json.dumps(config).encode(), "config.json"), name="m")
    # transformers leaves out the layers that predict further tokens; files have them
    ours = {t.name: t.shape for t in spec.tensors if (t.block or 0) < config["num_hidden_layers"]}
    assert elements(ours) == elements(case["tensors"])


def test_every_family_is_held_against_transformers() -> None:
    assert {case["config"]["model_type"] for case in CASES} | TWINS == set(families())

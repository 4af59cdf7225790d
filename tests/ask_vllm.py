"""Asks the installed vLLM what it would do, without starting an engine. Runs under the Python that has vLLM.

In: one question a line on standard input, as JSON: ``config`` (a config.json), ``args`` (of ``EngineArgs``),
``tp``, ``pp``, ``available`` (bytes for the cache of each rank, several to try), ``card`` (with the blocks and
steps of a card), ``checkpoint`` (tell the tensors that transformers would save instead). Out: one answer a line,
after ``ANSWER``. Models are built on the meta device: shapes without data. Parallel groups are stand-ins that only
know their size, so that any number of ranks fits one process.
"""

import gc
import json
import os
import sys
import tempfile
from contextlib import nullcontext
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import torch
import transformers
import vllm.distributed.parallel_state as groups
from transformers.core_model_loading import revert_weight_conversion
from vllm.config import set_current_vllm_config
from vllm.config.vllm import get_layers_from_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.fused_moe import expert_map_manager
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models import registry
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import AttentionSpec

Question = dict[str, Any]


class Sized:
    """A process group of which only size and rank are asked."""

    def __init__(self, size: int, rank: int) -> None:
        self._size, self._rank = size, rank

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank


class Group:
    """A parallel group that nothing is sent through."""

    def __init__(self, size: int, rank: int) -> None:
        self.world_size = size
        self.rank_in_group = self.rank = self.local_rank = rank
        self.ranks = list(range(size))
        self.first_rank, self.last_rank = 0, size - 1
        self.is_first_rank, self.is_last_rank = rank == 0, rank == size - 1
        self.device_group = self.cpu_group = Sized(size, rank)
        self.device = torch.device("cpu")
        self.device_communicator = None
        self.unique_name = "stand-in"


def stand_in(tp: int, pp: int, stage: int) -> None:
    """Be the first tensor-parallel rank of *stage*."""
    for name, group in {
        "_TP": Group(tp, 0),
        "_ETP": Group(tp, 0),
        "_EP": Group(tp, 0),
        "_PP": Group(pp, stage),
        "_WORLD": Group(tp * pp, tp * stage),
        **{name: Group(1, 0) for name in ("_DP", "_DCP", "_PCP", "_ENGRAM_DP")},
        "_EPLB": None,
    }.items():
        setattr(groups, name, group)


def answer(question: Question) -> dict[str, Any]:
    if question.get("flags"):
        return {"flags": flags(), "architectures": sorted(registry._VLLM_MODELS)}
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:  # noqa: PTH118, PTH123
            json.dump(question["config"], file)
        if question.get("checkpoint"):
            return {"checkpoint": checkpoint(folder)}
        with LikeACard() if question.get("card") else nullcontext():
            return engine(folder, question)


def flags() -> dict[str, int | str]:
    """Every flag of the API server → how many values it takes."""
    parser = make_arg_parser(FlexibleArgumentParser())
    return {
        option: 0 if action.nargs == 0 else 1 if action.nargs is None else action.nargs
        for action in parser._actions
        for option in action.option_strings
    }


def checkpoint(folder: str) -> dict[str, list[int]]:
    """The tensors that transformers would save for this config: name → shape."""
    config = transformers.AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    state = revert_weight_conversion(model, model.state_dict())
    tied = set(model.all_tied_weights_keys) if getattr(config, "tie_word_embeddings", True) else set()
    return {name: list(tensor.shape) for name, tensor in state.items() if name not in tied}


class LikeACard:
    """Blocks of sixteen tokens, states in the model's own type: as on a card, for a while."""

    def __enter__(self) -> None:
        self._sizes = CPUAttentionBackend.get_supported_kernel_block_sizes
        self._accelerated = torch.cpu._is_avx512_bf16_supported
        CPUAttentionBackend.get_supported_kernel_block_sizes = staticmethod(lambda _=None: [MultipleOf(16)])
        torch.cpu._is_avx512_bf16_supported = lambda: False

    def __exit__(self, *_: object) -> None:
        CPUAttentionBackend.get_supported_kernel_block_sizes = staticmethod(self._sizes)
        torch.cpu._is_avx512_bf16_supported = self._accelerated


def engine(folder: str, question: Question) -> dict[str, Any]:
    """What vLLM resolves, what each stage's first rank holds, and the cache that each amount of memory makes."""
    tp, pp = question.get("tp", 1), question.get("pp", 1)
    config = EngineArgs(
        model=folder,
        skip_tokenizer_init=True,
        load_format="dummy",
        enforce_eager=True,
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        distributed_executor_backend="mp",
        **question.get("args", {}),
    ).create_engine_config(UsageContext.OPENAI_API_SERVER)
    model, cache, scheduler = config.model_config, config.cache_config, config.scheduler_config
    scheduler.async_scheduling = bool(question.get("card"))
    told: dict[str, Any] = {
        "max_model_len": model.max_model_len,
        "dtype": str(model.dtype).removeprefix("torch."),
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "in_flight_tokens": config.max_in_flight_tokens,
        "weights": [],
        "caches": [],
    }
    specs: list[dict[str, Any]] = []
    backends: list[Any] = []
    for stage in range(pp):
        stand_in(tp, pp, stage)
        config.compilation_config.static_forward_context.clear()
        config.compilation_config.static_all_moe_layers.clear()
        with set_current_vllm_config(config), set_default_torch_dtype(model.dtype), torch.device("meta"):
            built = initialize_model(config)
        own = {id(p): p.numel() * p.element_size() for p in built.parameters()}
        told["weights"].append(sum(own.values()))
        current_platform.update_block_size_for_backend(config)
        specs.append(cache_specs(config, backends))
        del built
        gc.collect()
    told["block_size"] = cache.block_size
    layouts = [layout.name for layout in get_supported_kv_cache_layouts(backends)]
    resolve_kv_cache_layout(config, [layouts] * pp, [spec for own in specs for spec in own.values()])
    length = model.max_model_len
    for available in question.get("available", []):
        model.max_model_len = length
        told["caches"].append(pool(config, specs, available))
    return told


def cache_specs(config: Any, backends: list[Any]) -> dict[str, Any]:
    """As ``GPUModelRunner.get_kv_cache_spec``."""
    own: dict[str, Any] = {}
    for name, layer in get_layers_from_vllm_config(config, AttentionLayerBase).items():
        spec = None if getattr(layer, "kv_sharing_target_layer_name", None) else layer.get_kv_cache_spec(config)
        if spec is None:
            continue
        backend = layer.get_attn_backend()
        backends += [] if backend in backends else [backend]
        own[name] = backend.customize_spec(spec) if isinstance(spec, AttentionSpec) else spec
    return own


def pool(config: Any, specs: list[dict[str, Any]], available: int) -> dict[str, Any]:
    try:
        made = kv_cache_utils.get_kv_cache_configs(config, [dict(own) for own in specs], [available] * len(specs))
    except ValueError as error:
        return {"error": str(error)}
    scheduler = kv_cache_utils.generate_scheduler_kv_cache_config(made)
    tokens, _ = kv_cache_utils.get_kv_cache_capacity(config, scheduler)
    return {
        "blocks": scheduler.num_blocks,
        "tokens": tokens,
        "max_model_len": config.model_config.max_model_len,
        "groups": len(scheduler.kv_cache_groups),
    }


def main() -> None:
    # it only makes a line of the log, from values, and there are none on the meta device
    expert_map_manager.ExpertMapManager.get_compressed_map_string = lambda _: ""
    kv_cache_utils.logger.setLevel("ERROR")
    transformers.logging.set_verbosity_error()
    # vLLM patches transformers once a model needs that backend, so what transformers itself says comes first
    for question in sorted(map(json.loads, sys.stdin), key=lambda q: not q.get("checkpoint")):
        try:
            told = answer(question)
        except Exception as error:
            told = {"error": f"{type(error).__name__}: {error}"[:2000]}
        print("ANSWER", json.dumps({**told, "id": question["id"]}), flush=True)


if __name__ == "__main__":
    main()

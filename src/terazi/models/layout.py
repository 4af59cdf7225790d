"""Which of a folder's or repository's files are the model, when they are safetensors.

In: names. Out: names. The order of preference is that of ``transformers`` and vLLM.
"""

from collections.abc import Sequence
from typing import Final

INDEX_SUFFIX: Final = ".safetensors.index.json"
SUFFIX: Final = ".safetensors"
CONFIG: Final = "config.json"
#: The config that comes with ``consolidated.safetensors``, Mistral's own layout.
PARAMS: Final = "params.json"
TOKENIZER_CONFIG: Final = "tokenizer_config.json"
#: Safetensors files that are no part of the model's weights.
_NO_WEIGHTS: Final = ("adapter_model", "training_args", "optimizer", "scheduler", "random_states")
#: Files with a chat template, apart from the tokenizer's config.
_TEMPLATES: Final = ("chat_template.jinja", "chat_template.json")


def choose_files(names: Sequence[str]) -> tuple[str, ...] | None:
    """Which of a folder's *names* hold the model: an index, or the weights themselves; None if nothing does.

    The order is that of ``transformers`` and vLLM: the index of ``model``, then that one file, then another index,
    then Mistral's layout, then whatever safetensors files there are.
    """
    here = set(names)
    indices = sorted(name for name in names if name.endswith(INDEX_SUFFIX))
    weights = sorted(name for name in names if name.endswith(SUFFIX) and not name.startswith(_NO_WEIGHTS))
    for name in ("model" + INDEX_SUFFIX, "model" + SUFFIX):
        if name in here:
            return (name,)
    others = [name for name in weights if not name.startswith("consolidated")]
    own = [name for name in indices if not name.startswith("consolidated")]
    if len(own) == 1:
        return (own[0],)
    if others and not own:
        return tuple(others)
    for name in ("consolidated" + INDEX_SUFFIX, "consolidated" + SUFFIX):
        if name in here:
            return (name,)
    return tuple(weights) or None


def config_for(names: Sequence[str], weights: str) -> str | None:
    """Which of *names* is the config that goes with the file *weights*."""
    preferred = (PARAMS, CONFIG) if weights.startswith("consolidated") else (CONFIG, PARAMS)
    return next((name for name in preferred if name in names), None)


def has_template(names: Sequence[str], tokenizer_config: bytes) -> bool:
    """Whether a chat template comes with the model."""
    return any(name in names for name in _TEMPLATES) or b'"chat_template"' in tokenizer_config

"""The state that a recurrent layer keeps for each sequence.

Shapes are those of ``MambaStateShapeCalculator`` and types those of ``MambaStateDtypeCalculator`` in
``model_executor/layers/mamba/mamba_utils.py``, vLLM 0.32.0.
"""

from dataclasses import dataclass
from typing import Final

from terazi.models.hf_config import HfConfig

#: Families with the first Mamba; the others have the second.
_MAMBA1: Final = frozenset({"mamba", "falcon_mamba", "jamba"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShape:
    """What is kept for one sequence in one layer, undivided.

    Args:
        conv_width: channels of the convolution; ranks divide them.
        grouped_width: channels of it that come ``groups`` at a time (B and C of Mamba 2), 0 without.
        groups: of those channels; with fewer groups than ranks, each rank keeps one.
        conv_length: inputs that the convolution remembers, without those of guessed tokens.
        guessed_rows: whether guessed tokens make the convolution's memory longer.
        state: elements of the recurrent state; ranks divide them.
        checkpoints: states kept besides while a prompt is read (Mamba 2 where prefixes are cached).
    """

    conv_width: int
    conv_length: int
    grouped_width: int = 0
    groups: int = 0
    guessed_rows: bool = True
    state: int = 0
    checkpoints: int = 0

    def conv_elements(self, ranks: int, guessed: int) -> int:
        """Elements of the convolution's memory on one of *ranks* ranks."""
        width = self.conv_width
        if self.groups:
            groups = self.groups
            if groups % ranks:  # ``extra_groups_for_head_shards``: groups are copied, so that each rank has its own
                groups += ranks - groups
            width += self.grouped_width // self.groups * groups
        return width // ranks * (self.conv_length + (guessed if self.guessed_rows else 0))

    def state_elements(self, ranks: int) -> int:
        """Elements of the recurrent state on one of *ranks* ranks."""
        return self.state // ranks


def state_shape(config: HfConfig, kind: str) -> StateShape:
    """The state of a layer of *kind* (``mamba``, ``linear_attention``, ``conv``).

    Raises:
        ModelFileError: the config doesn't say what it depends on.
    """
    if kind == "conv":  # LFM2
        width = config.number("conv_dim", config.number("hidden_size"))
        return StateShape(conv_width=width, conv_length=config.number("conv_L_cache", 3) - 1, guessed_rows=False)
    if kind == "linear_attention":
        return _delta_net(config)
    if config.text_type in _MAMBA1:
        return _mamba1(config)
    return _mamba2(config)


def _delta_net(config: HfConfig) -> StateShape:
    """Gated delta net of Qwen3-Next and Qwen3.5: ``gated_delta_net_state_shape``."""
    key_heads, key = config.number("linear_num_key_heads"), config.number("linear_key_head_dim")
    value_heads, value = config.number("linear_num_value_heads"), config.number("linear_value_head_dim")
    return StateShape(
        conv_width=2 * key_heads * key + value_heads * value,
        conv_length=config.number("linear_conv_kernel_dim") - 1,
        state=value_heads * value * key,
    )


def _mamba1(config: HfConfig) -> StateShape:
    hidden = config.number("hidden_size")
    inner = config.number("mamba_expand", config.number("expand", 2)) * hidden
    states = config.number("mamba_d_state", config.number("state_size", 16))
    kernel = config.number("mamba_d_conv", config.number("conv_kernel", 4))
    return StateShape(conv_width=inner, conv_length=kernel - 1, guessed_rows=False, state=inner * states)


def _mamba2(config: HfConfig) -> StateShape:
    heads = _first(config, "mamba_n_heads", "n_mamba_heads", "mamba_num_heads", "num_heads")
    head = _first(config, "mamba_d_head", "mamba_headdim", "mamba_head_dim", "head_dim")
    groups = _first(config, "mamba_n_groups", "mamba_ngroups", "n_groups")
    states = _first(config, "mamba_d_state", "ssm_state_size", "state_size")
    kernel = _first(config, "mamba_d_conv", "conv_kernel")
    return StateShape(
        conv_width=heads * head,
        conv_length=kernel - 1,
        grouped_width=2 * groups * states,
        groups=groups,
        state=heads * head * states,
        checkpoints=1,
    )


def _first(config: HfConfig, *names: str) -> int:
    for name in names:
        value = config.value(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return config.number(names[0])

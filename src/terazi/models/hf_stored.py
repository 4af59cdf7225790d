"""How a config's weights are stored: its ``quantization_config`` turns one drawn tensor into those of the file.

In: ``Part`` and the config. Out: ``Stored`` by ``Stored``. Sources: the layers of vLLM 0.32
(in ``model_executor/layers/quantization``: ``fp8.py``, ``gptq.py``, ``awq.py``, ``compressed_tensors``), whose
names and shapes are those that the quantising tools write.
"""

import re
from collections.abc import Iterator
from math import ceil
from typing import Final, NamedTuple

from terazi.models.hf_blueprint import Part
from terazi.models.hf_config import HfConfig
from terazi.models.spec import MetadataValue

_TYPES: Final = {"bfloat16": "BF16", "float16": "F16", "half": "F16", "float32": "F32", "float": "F32"}
#: A pattern of a config that is this plain is matched; anything else could take for ever.
_PLAIN_PATTERN: Final = re.compile(r"[\w\-^$]*(?:(?:\\\.|\.\*|\.)[\w\-^$]*){0,6}")
_STARS: Final = 3
_GPTQ_SUFFIX: Final = ".weight"


class Stored(NamedTuple):
    """One tensor of the file."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class Storage:
    """What the config says about storing.

    ``reasons`` say what is an estimate; they are complete once everything was stored.
    """

    def __init__(self, config: HfConfig) -> None:
        self.reasons: list[str] = []
        self._config = config
        said = config.value("torch_dtype", "dtype")
        name = str(said).removeprefix("torch.")
        if name not in _TYPES:
            self.reasons.append("The config names no usual dtype; its weights are counted as bfloat16.")
        self.dtype = _TYPES.get(name, "BF16")
        method = self._said("quant_method")
        self._method = method.lower() if isinstance(method, str) else ""
        bits = self._number("bits", self._number("config_groups.group_0.weights.num_bits", 4))
        self._bits = bits if 1 <= bits <= 16 else 4
        self._group = self._number("group_size", self._number("config_groups.group_0.weights.group_size", 0))
        self._skipped = self._ignored()
        self._matched: dict[str, bool] = {}
        self._check()

    def store(self, part: Part) -> Iterator[Stored]:
        """The tensors that *part* is in the file."""
        if part.full:
            yield Stored(part.name, part.shape, "F32")
        elif part.name.endswith(("_blocks", "_scales")):
            yield Stored(part.name, part.shape, "U8")
        elif not part.linear or not self._method or self._is_skipped(part.name):
            yield Stored(part.name, part.shape, self.dtype)
        else:
            yield from self._quantised(part)

    def _quantised(self, part: Part) -> Iterator[Stored]:
        name, shape, method = part.name, part.shape, self._method
        form = self._said("format")
        if method == "fp8" or form == "float-quantized":
            yield from self._fp8(part, channelwise=form is not None)
        elif method in {"gptq", "awq"} and len(shape) == 2:
            yield from self._four_bit(part)
        elif form == "pack-quantized":
            rows, columns = shape[-2:]
            lead = shape[:-2]
            yield Stored(f"{name}_packed", (*lead, rows, ceil(columns * self._bits / 32)), "I32")
            yield Stored(f"{name}_scale", (*lead, rows, self._groups(columns)), self.dtype)
            yield Stored(f"{name}_shape", (2,), "I64")
            if self._said("config_groups.group_0.weights.symmetric") is False:
                points = (ceil(rows * self._bits / 32), self._groups(columns))
                yield Stored(f"{name}_zero_point", (*lead, *points), "I32")
        elif form == "int-quantized":
            yield Stored(name, shape, "I8")
            yield Stored(f"{name}_scale", (*shape[:-1], 1), self.dtype)
        elif form == "nvfp4-pack-quantized":
            yield Stored(f"{name}_packed", (*shape[:-1], shape[-1] // 2), "U8")
            yield Stored(f"{name}_scale", (*shape[:-1], shape[-1] // 16), "F8_E4M3")
            yield Stored(f"{name}_global_scale", (1,), "F32")
            yield Stored(f"{name.removesuffix('weight')}input_global_scale", (1,), "F32")
        else:
            yield Stored(name, shape, self.dtype)

    def _groups(self, columns: int) -> int:
        """How many scales a row has; one for the whole row unless groups are named."""
        return -(-columns // self._group) if self._group > 0 else 1

    def _fp8(self, part: Part, *, channelwise: bool) -> Iterator[Stored]:
        name, shape = part.name, part.shape
        yield Stored(name, shape, "F8_E4M3")
        block = self._said("weight_block_size")
        if isinstance(block, tuple) and len(block) == 2 and all(isinstance(b, int) and b > 0 for b in block):
            rows, columns = (int(b) for b in block)
            yield Stored(
                f"{name}_scale_inv", (*shape[:-2], ceil(shape[-2] / rows), ceil(shape[-1] / columns)), "F32"
            )
        elif channelwise and self._said("config_groups.group_0.weights.strategy") == "channel":
            yield Stored(f"{name}_scale", (*shape[:-1], 1), self.dtype)
        else:
            yield Stored(f"{name}_scale", (1,), self.dtype if channelwise else "F32")
        if self._said("activation_scheme") == "static":
            yield Stored(f"{name.removesuffix('weight')}input_scale", (1,), "F32")

    def _four_bit(self, part: Part) -> Iterator[Stored]:
        """GPTQ packs along the inputs, AWQ along the outputs; both keep a zero point and a scale a group."""
        stem = part.name.removesuffix(_GPTQ_SUFFIX)
        rows, columns = part.shape
        groups = self._groups(columns)
        if self._method == "awq":
            yield Stored(f"{stem}.qweight", (columns, rows * self._bits // 32), "I32")
        else:
            yield Stored(f"{stem}.qweight", (columns * self._bits // 32, rows), "I32")
            yield Stored(f"{stem}.g_idx", (columns,), "I32")
        yield Stored(f"{stem}.qzeros", (groups, rows * self._bits // 32), "I32")
        yield Stored(f"{stem}.scales", (groups, rows), "F16")

    def _check(self) -> None:
        if not self._method or self._method in {"fp8", "gptq", "awq", "mxfp4"}:
            return
        form = self._said("format")
        known = {"float-quantized", "pack-quantized", "int-quantized", "nvfp4-pack-quantized"}
        if self._method == "compressed-tensors" and form in known:
            return
        what = f"{self._method} ({form})" if isinstance(form, str) else self._method
        self.reasons.append(
            f"How {what} stores its weights isn't known here; they are counted as {self.dtype}: an upper bound."
        )
        self._method = ""

    def _ignored(self) -> list[re.Pattern[str] | str]:
        patterns: list[re.Pattern[str] | str] = []
        for key in ("ignore", "modules_to_not_convert", "ignored_layers"):
            value = self._said(key)
            for text in value if isinstance(value, tuple) else ():
                if not isinstance(text, str):
                    continue
                if not text.startswith("re:"):
                    patterns.append(text)
                elif len(text) < 128 and text.count("*") <= _STARS and _PLAIN_PATTERN.fullmatch(text[3:]):
                    patterns.append(re.compile(text[3:]))
                else:
                    self.reasons.append(
                        "A pattern of modules that aren't quantised is too intricate and was ignored."
                    )
        return patterns

    def _is_skipped(self, name: str) -> bool:
        module = name.removesuffix(".weight")
        found = self._matched.get(module)
        if found is None:
            found = self._matched[module] = any(_matches(pattern, module) for pattern in self._skipped)
        return found

    def _said(self, key: str) -> MetadataValue | None:
        return self._config.value(f"quantization_config.{key}")

    def _number(self, key: str, default: int) -> int:
        value = self._said(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else default


def _matches(pattern: re.Pattern[str] | str, module: str) -> bool:
    if isinstance(pattern, str):
        return module == pattern or module.startswith(f"{pattern}.") or f".{pattern}." in f".{module}."
    return pattern.match(module) is not None

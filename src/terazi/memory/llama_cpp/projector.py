"""What a multimodal projector's file says: its encoders and the images that they are measured with.

Source: ``tools/mtmd/clip.cpp:clip_model_loader::load_hparams`` and ``clip-model.h``, build b11434.
"""

from collections.abc import Iterator, Mapping
from math import isqrt
from typing import NamedTuple

from terazi.errors import ModelFileError
from terazi.memory.llama_cpp.resolve import SERVERS
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.models.spec import MetadataValue, ModelSpec

#: Frames of a sound that is reserved for (``warmup_audio_size`` of ``clip_hparams``): 30 seconds.
WARMUP_FRAMES = 3000
#: More pixels a side than any image has, and more layers than any encoder.
_SIDE_LIMIT = 2**17
_LAYERS_LIMIT = 1024
#: ``audio_chunk_len`` is 0: a sound is not cut to 30 seconds.
ENDLESS = frozenset({"gemma4a", "gemma4ua", "granite_speech", "parakeet", "mimo_audio"})


class _Sizes(NamedTuple):
    """How a kind of projector sizes its images.

    Args:
        merge: patches that become one token, along one side; ``merge_key`` may overrule it.
        merge_key: ``scale`` (``projector.scale_factor``) or ``spatial`` (``spatial_merge_size``).
        warmup: tokens of the image that is reserved for; None is the file's ``image_size``, 0 the largest image.
        tokens: of the smallest and the largest image, where sizes are free.
        pixels: the file gives both in pixels; with ``overruled`` the command line may change them.
    """

    merge: int = 1
    merge_key: str = "scale"
    warmup: int | None = None
    tokens: tuple[int, int] | None = None
    pixels: bool = False
    overruled: bool = False


_QWEN = _Sizes(merge=2, merge_key="spatial", warmup=46 * 46, tokens=(8, 4096))
_GEMMA4 = _Sizes(merge=3, warmup=256, tokens=(70, 1120))
_SIZES: Mapping[str, _Sizes] = {
    "gemma3": _Sizes(merge=4),
    "gemma4v": _GEMMA4,
    "gemma4uv": _GEMMA4,
    "qwen2vl_merger": _QWEN,
    "qwen2.5vl_merger": _QWEN,
    "qwen3vl_merger": _QWEN,
    "ling3vl": _QWEN,
    "glm4v": _QWEN,
    "glm5v": _Sizes(merge=2, merge_key="spatial", warmup=46 * 46, pixels=True, overruled=True),
    "exaone4_5": _Sizes(merge=2, merge_key="spatial", warmup=46 * 46, pixels=True),
    "mimovl": _Sizes(merge=2, merge_key="spatial", warmup=46 * 46, pixels=True),
    "pixtral": _Sizes(merge_key="spatial", warmup=256, tokens=(8, 1024)),
    "lightonocr": _Sizes(merge_key="spatial", warmup=256),
    "kimivl": _Sizes(warmup=256, tokens=(8, 1024)),
    "kimik25": _Sizes(warmup=0, tokens=(2, 4096)),
    "lfm2": _Sizes(warmup=0, tokens=(64, 256)),
    "phi4": _Sizes(merge_key="", warmup=16 * 16, pixels=True),
    "dots_ocr": _Sizes(warmup=46 * 46, pixels=True),
    "dots3note_v": _Sizes(merge_key="spatial", warmup=46 * 46, pixels=True),
    "paddleocr": _Sizes(merge=2, merge_key="", warmup=28 * 28, pixels=True),
    "minimax_m3": _Sizes(merge=2, merge_key="spatial", warmup=16 * 16, tokens=(8, 576)),
    "muse-glimmer": _Sizes(merge=2, merge_key="spatial", warmup=32 * 32, tokens=(1, 4096)),
    "hunyuanvl": _Sizes(merge=2, merge_key="spatial", warmup=32 * 32, tokens=(256, 16384)),
    "youtuvl": _Sizes(merge=2, merge_key="spatial", warmup=16 * 16, tokens=(1, 62500)),
    "step3vl": _Sizes(merge=4),
    "minicpmv4_6": _Sizes(merge=4),
}
_MERGE_KEYS = {"scale": "clip.vision.projector.scale_factor", "spatial": "clip.vision.spatial_merge_size"}
#: Resolutions that these overrule.
_FIXED_SIDE = {"deepseekocr": 1024, "deepseekocr2": 1024}


class Encoder(NamedTuple):
    """One encoder of a projector's file.

    Args:
        modality: ``vision``, ``audio`` or ``gen`` (sound generation, whose graph isn't reserved).
        kind: the projector's type, as the file spells it, joined ones taken apart.
        prefix: of its tensors.
        width, heads, kv_heads, head_width, layers: of its transformer.
        patch: side of a patch in pixels (1 for sounds); ``merge``: patches that become one token, along one side.
        warmup: width and height of the image, or frames and bands of the sound, that is reserved for.
        largest: the same of the largest that it will take on later.
        keys: the file's metadata.
    """

    modality: str
    kind: str
    prefix: str
    width: int
    heads: int
    kv_heads: int
    head_width: int
    layers: int
    patch: int
    merge: int
    warmup: tuple[int, int]
    largest: tuple[int, int]
    keys: Mapping[str, MetadataValue]

    def number(self, key: str, default: int = 0) -> int:
        """``clip.MODALITY.key``, or the default."""
        return _number(self.keys, f"clip.{self.modality}.{key}", default)

    def numbers(self, key: str) -> tuple[int, ...]:
        """An array of whole numbers."""
        value = self.keys.get(f"clip.{self.modality}.{key}")
        return tuple(int(v) for v in value if isinstance(v, int)) if isinstance(value, tuple) else ()


def encoders(spec: ModelSpec, settings: LlamaCppSettings, n_ubatch: int) -> Iterator[Encoder]:
    """The encoders that the engine loads from *spec*, in its order.

    Args:
        spec: of the projector's file.
        settings: the command line.
        n_ubatch: tokens of a micro-batch; an image that is attended to in both directions must fit into one.

    Raises:
        ModelFileError: if a key that the engine demands is missing or makes no sense.
    """
    skip_audio = False
    for modality, prefix, key in (
        ("vision", "v", "clip.has_vision_encoder"),
        ("audio", "a", "clip.has_audio_encoder"),
        ("gen", "a.gen.code", "clip.has_gen_audio_encoder"),
    ):
        if spec.metadata.get(key) is not True or (skip_audio and modality == "audio"):
            continue
        encoder = _encoder(spec, modality, prefix, settings, n_ubatch)
        # clip_init: sounds of Gemma 3n aren't supported yet, their tensors stay in the file
        skip_audio = encoder.kind == "gemma3nv"
        yield encoder


def _encoder(spec: ModelSpec, modality: str, prefix: str, settings: LlamaCppSettings, n_ubatch: int) -> Encoder:
    keys, label = spec.metadata, spec.name
    room = "gen.audio" if modality == "gen" else modality
    kind = _kind(keys, modality, room, label)
    width = _demand(keys, f"clip.{room}.embedding_length", label)
    heads = _demand(keys, f"clip.{room}.attention.head_count", label)
    sizes = _SIZES.get(kind, _Sizes())
    merge = _number(keys, _MERGE_KEYS.get(sizes.merge_key, ""), sizes.merge)
    patch = 1
    if modality == "vision":
        patch = _demand(keys, "clip.vision.patch_size", label)
        if kind == "gemma4uv":  # tokens are merged by the convolution itself
            patch, merge = patch * merge, 1
        if kind in _FIXED_SIDE:
            patch = 16
        if not (0 < patch < 65536 and 0 < merge < 65536):
            raise _senseless(label, modality)
        cap = n_ubatch if settings.tool in SERVERS else 0
        warmup, largest = _images(spec, kind, patch, merge, (settings.image_max_tokens, cap))
    else:
        bands = 640 if kind == "gemma4ua" else _number(keys, "clip.audio.num_mel_bins", 0)
        warmup = largest = (WARMUP_FRAMES, bands)
    layers = _demand(keys, f"clip.{room}.block_count", label)
    if layers > _LAYERS_LIMIT or not 0 < width < 2**20 or max(*warmup, *largest) > _SIDE_LIMIT:
        raise _senseless(label, modality)
    return Encoder(
        modality=modality,
        kind=kind,
        prefix=prefix,
        width=width,
        heads=heads,
        kv_heads=_number(keys, f"clip.{room}.attention.head_count_kv", heads),
        head_width=_number(keys, f"clip.{room}.attention.head_dim", 0) or (width // heads if heads else 0),
        layers=layers,
        patch=patch,
        merge=merge,
        warmup=warmup,
        largest=largest,
        keys=keys,
    )


def _senseless(label: str, modality: str) -> ModelFileError:
    return ModelFileError(
        f"{label} has senseless sizes for its {modality} encoder.",
        hint="It is damaged, or made by a faulty converter: download it again.",
    )


def _kind(keys: Mapping[str, MetadataValue], modality: str, room: str, label: str) -> str:
    kind = keys.get("clip.projector_type") or keys.get(f"clip.{room}.projector_type")
    if not isinstance(kind, str):
        raise ModelFileError(
            f"{label} names no projector type for its {modality} encoder.",
            hint="Download a current file, or convert it again.",
        )
    if kind == "qwen2.5o":
        return "qwen2.5vl_merger" if modality == "vision" else "qwen2a"
    return kind


def _images(
    spec: ModelSpec, kind: str, patch: int, merge: int, limits: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """The image that is reserved for, and the largest one: width and height in pixels.

    *limits* are the tokens that the command allows an image (0: as the file says) and those of a micro-batch.
    """
    sizes, keys = _SIZES.get(kind, _Sizes()), spec.metadata
    side = _FIXED_SIDE.get(kind) or _demand(keys, "clip.vision.image_size", spec.name)
    unit = patch * merge
    asked, n_ubatch = limits
    limit = 0
    least, most = (_number(keys, f"clip.vision.image_{end}_pixels", 0) for end in ("min", "max"))
    if kind == "kimik25" and least and most:
        return (isqrt(most), isqrt(most)), (isqrt(most), isqrt(most))
    if sizes.tokens:
        limit = asked or sizes.tokens[1]
    elif sizes.pixels:
        limit = most // (unit * unit)
        if sizes.overruled and asked:
            limit = asked
    if _whole_in_micro_batch(kind, spec) and 0 < n_ubatch < limit:
        limit = asked = n_ubatch  # server-context.cpp: "cap image_max_tokens"
    if sizes.warmup:
        across = isqrt(sizes.warmup)
        if 0 < asked < sizes.warmup:
            across = max(1, isqrt(asked))
        warmup = across * unit
    else:
        warmup = side if sizes.warmup is None else isqrt(limit * unit * unit)
    if kind == "lightonocr":
        longest = -(-_number(keys, "clip.vision.preproc_image_size", side) // unit) * unit
        return (warmup, warmup), (longest, longest)
    if not limit:
        return (warmup, warmup), (warmup, warmup)
    wide, high = _fullest(limit)
    return (warmup, warmup), (wide * unit, high * unit)


def _fullest(tokens: int) -> tuple[int, int]:
    """Sides of a rectangle of *tokens* squares, nearly a square; of a few more where there are no such sides."""
    side = isqrt(tokens)
    wide = next((wide for wide in range(side, side // 2, -1) if tokens % wide == 0), side)
    return wide, -(-tokens // wide)


def _whole_in_micro_batch(kind: str, spec: ModelSpec) -> bool:
    """``mtmd_decode_use_non_causal``: tokens of an image see each other in both directions."""
    if kind == "gemma4v":
        width = next((t.shape[1] for t in spec.tensors if t.name == "mm.input_projection.weight"), 0)
        return width not in {1536, 2560}
    return kind in {"gemma4uv", "gemma3", "deepseek4v"}


def _number(keys: Mapping[str, MetadataValue], key: str, default: int) -> int:
    value = keys.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


def _demand(keys: Mapping[str, MetadataValue], key: str, label: str) -> int:
    value = keys.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise ModelFileError(
            f"{label} lacks a sensible value under {key}, without which no engine can load it.",
            hint="Download a current file, or convert it again.",
        )
    return value

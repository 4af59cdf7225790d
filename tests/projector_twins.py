"""Small projectors of every kind that is drawn: real headers, zeros for weights.

Embeddings are as wide as the demo model's. Names and shapes are those that ``clip_model_loader::load_tensors`` of
llama.cpp b11434 asks for; sizes are cut down so that the engine loads them in a moment.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gguf_writer import ARRAY, FLOAT32, INT32, TensorRow, Typed, header, write_gguf
from terazi.memory.companion import Companion
from terazi.models.companions import build_companion
from terazi.models.gguf import header_from_bytes

#: The demo model's embedding length.
TEXT = 576
#: Gemma 3 270M's, for the one kind that can't have the other.
WIDER = 640
_MEAN = Typed(ARRAY, [0.5, 0.5, 0.5], FLOAT32)


def pair(name: str, *shape: int, dtype: str = "f16") -> list[TensorRow]:
    """A matrix and its bias."""
    return [(f"{name}.weight", shape, dtype), (f"{name}.bias", shape[-1:], "f32")]


def norm(name: str, width: int) -> list[TensorRow]:
    """A norm's weight and bias."""
    return [(f"{name}.weight", (width,), "f32"), (f"{name}.bias", (width,), "f32")]


def vision_keys(kind: str, **more: object) -> dict[str, object]:
    """The keys that every image encoder has."""
    sizes: dict[str, object] = {
        "embedding_length": 64,
        "attention.head_count": 4,
        "feed_forward_length": 160,
        "block_count": 3,
        "projection_dim": TEXT,
        "attention.layer_norm_epsilon": 1e-6,
        "image_size": 112,
        "patch_size": 14,
        "image_mean": _MEAN,
        "image_std": _MEAN,
    }
    sizes.update({key.replace("__", "."): value for key, value in more.items()})
    keys: dict[str, object] = {
        "general.type": "mmproj",
        "clip.has_vision_encoder": True,
        "clip.projector_type": kind,
        "clip.use_gelu": True,
    }
    keys.update((f"clip.vision.{key}", value) for key, value in sizes.items())
    return keys


def blocks(
    prefix: str,
    count: int,
    width: int,
    inner: int,
    *,
    joined: bool = False,
    gate: bool = False,
    biased: bool = True,
    key_bias: bool = True,
    kv_width: int | None = None,
    norms: str = "both",
    dtype: str = "f16",
) -> list[TensorRow]:
    """Transformer blocks."""
    rows: list[TensorRow] = []
    for block in range(count):
        name = f"{prefix}.blk.{block}"
        parts: list[TensorRow] = []
        if joined:
            parts += pair(f"{name}.attn_qkv", width, 3 * width, dtype=dtype)
        else:
            for part in "qkv":
                wide = width if part == "q" or kv_width is None else kv_width
                two = pair(f"{name}.attn_{part}", width, wide, dtype=dtype)
                parts += two if part != "k" or key_bias else two[:1]
        parts += pair(f"{name}.attn_out", width, width, dtype=dtype)
        parts += pair(f"{name}.ffn_up", width, inner, dtype=dtype)
        parts += pair(f"{name}.ffn_down", inner, width, dtype=dtype)
        if gate:
            parts += pair(f"{name}.ffn_gate", width, inner, dtype=dtype)
        rows += parts if biased else [row for row in parts if row[0].endswith(".weight")]
        for number in (1, 2):
            two = norm(f"{name}.ln{number}", width)
            rows += two if norms == "both" else two[:1]
    return rows


def gemma3() -> tuple[dict[str, object], list[TensorRow]]:
    keys = vision_keys("gemma3", image_size=224)
    rows = [
        ("v.patch_embd.weight", (14, 14, 3, 64), "f16"),
        ("v.patch_embd.bias", (64,), "f32"),
        ("v.position_embd.weight", (64, 256), "f32"),
        *norm("v.post_ln", 64),
        *blocks("v", 3, 64, 160),
        ("mm.input_projection.weight", (TEXT, 64), "f16"),
        ("mm.soft_emb_norm.weight", (64,), "f32"),
    ]
    return keys, rows


def idefics3() -> tuple[dict[str, object], list[TensorRow]]:
    keys = vision_keys("idefics3", image_size=126, projector__scale_factor=2)
    rows = [
        ("v.patch_embd.weight", (14, 14, 3, 64), "f32"),
        ("v.patch_embd.bias", (64,), "f32"),
        ("v.position_embd.weight", (64, 81), "f32"),
        *norm("v.post_ln", 64),
        *blocks("v", 3, 64, 192, dtype="q8_0"),
        ("mm.model.fc.weight", (256, TEXT), "q8_0"),
    ]
    return keys, rows


def lfm2() -> tuple[dict[str, object], list[TensorRow]]:
    keys = vision_keys("lfm2", image_size=256, patch_size=16, projector__scale_factor=2)
    rows = [
        ("v.patch_embd.weight", (16, 16, 3, 64), "f16"),
        ("v.patch_embd.bias", (64,), "f32"),
        ("v.position_embd.weight", (64, 256), "f32"),
        *norm("v.post_ln", 64),
        *blocks("v", 2, 64, 160),
        *norm("mm.input_norm", 256),
        *pair("mm.1", 256, 320),
        *pair("mm.2", 320, TEXT),
    ]
    return {**keys, "clip.vision.block_count": 2}, rows


def phi4() -> tuple[dict[str, object], list[TensorRow]]:
    keys = vision_keys("phi4", image_size=112, image_min_pixels=3136, image_max_pixels=200704)
    rows = [
        ("v.patch_embd.weight", (14, 14, 3, 64), "f16"),
        ("v.patch_embd.bias", (64,), "f32"),
        ("v.position_embd.weight", (64, 64), "f32"),
        *norm("v.post_ln", 64),
        *blocks("v", 3, 64, 160),
        *pair("mm.0", 64, 320),
        *pair("mm.2", 320, TEXT),
    ]
    return keys, rows


def janus() -> tuple[dict[str, object], list[TensorRow]]:
    keys = vision_keys("janus_pro", image_size=112)
    rows = [
        ("v.patch_embd.weight", (14, 14, 3, 64), "bf16"),
        ("v.patch_embd.bias", (64,), "f32"),
        ("v.position_embd.weight", (64, 64), "f32"),
        *norm("v.post_ln", 64),
        *blocks("v", 3, 64, 160),
        *pair("mm.0", 64, 320),
        *pair("mm.1", 320, TEXT),
    ]
    return keys, rows


def pixtral(*, merger: bool = False, breaks: bool = True) -> tuple[dict[str, object], list[TensorRow]]:
    keys = vision_keys("pixtral" if breaks else "lightonocr", image_size=1024, patch_size=16)
    if merger:
        keys["clip.vision.spatial_merge_size"] = 2
    rows: list[TensorRow] = [
        ("v.patch_embd.weight", (16, 16, 3, 64), "f16"),
        ("v.pre_ln.weight", (64,), "f32"),
        *blocks("v", 3, 64, 160, gate=True, biased=False, norms="weight"),
        *pair("mm.1", 64, 192)[: 1 if merger else 2],
        *pair("mm.2", 192, TEXT)[: 1 if merger else 2],
    ]
    if breaks:
        rows.append(("v.token_embd.img_break", (TEXT,), "f32"))
    if merger:
        rows += [("mm.input_norm.weight", (64,), "f32"), ("mm.patch_merger.weight", (256, 64), "f16")]
    return {**keys, "clip.use_gelu": False, "clip.use_silu": True}, rows


def internvl() -> tuple[dict[str, object], list[TensorRow]]:
    keys = vision_keys("internvl", image_size=112, projector__scale_factor=2)
    rows = [
        ("v.class_embd", (64,), "f32"),
        ("v.patch_embd.weight", (14, 14, 3, 64), "f16"),
        ("v.patch_embd.bias", (64,), "f32"),
        ("v.position_embd.weight", (64, 65), "f32"),
        *blocks("v", 3, 64, 160, joined=True),
        *((f"v.blk.{block}.ls{number}.weight", (64,), "f32") for block in range(3) for number in (1, 2)),
        *norm("mm.model.mlp.0", 256),
        *pair("mm.model.mlp.1", 256, 192),
        *pair("mm.model.mlp.3", 192, TEXT),
        ("v.not_asked_for", (64, 64), "f32"),
    ]
    return keys, rows


def llama4() -> tuple[dict[str, object], list[TensorRow]]:
    keys = vision_keys("llama4", image_size=112, projector__scale_factor=2)
    rows = [
        ("v.class_embd", (64,), "f32"),
        ("v.patch_embd.weight", (588, 64), "f16"),
        ("v.position_embd.weight", (64, 65), "f32"),
        *norm("v.pre_ln", 64),
        *norm("v.post_ln", 64),
        *blocks("v", 3, 64, 160),
        ("mm.model.mlp.1.weight", (256, 192), "f16"),
        ("mm.model.mlp.2.weight", (192, 128), "f16"),
        ("mm.model.fc.weight", (128, TEXT), "f16"),
    ]
    return keys, rows


def llava(*, granite: bool = False) -> tuple[dict[str, object], list[TensorRow]]:
    keys = vision_keys("mlp", image_size=112)
    width = 64
    if granite:
        keys["clip.vision.feature_layer"] = [1, 2, 3]
        width = 192
    rows: list[TensorRow] = [
        ("v.patch_embd.weight", (14, 14, 3, 64), "f16"),
        ("v.position_embd.weight", (64, 64 if granite else 65), "f32"),
        *blocks("v", 3, 64, 160),
        *pair("mm.0", width, TEXT),
        *pair("mm.2", TEXT, TEXT),
    ]
    if not granite:
        rows += [("v.class_embd", (64,), "f32"), *norm("v.pre_ln", 64)]
    else:
        rows += [("v.patch_embd.bias", (64,), "f32"), *norm("v.post_ln", 64), ("v.image_newline", (TEXT,), "f32")]
    return keys, rows


def minicpmv() -> tuple[dict[str, object], list[TensorRow]]:
    keys = {
        **vision_keys("resampler", image_size=112),
        "clip.minicpmv_version": Typed(INT32, 3),
        "clip.minicpmv_query_num": 64,
    }
    wide = WIDER  # a whole number of heads of 128
    rows: list[TensorRow] = [
        ("v.patch_embd.weight", (14, 14, 3, 64), "f16"),
        ("v.patch_embd.bias", (64,), "f32"),
        ("v.position_embd.weight", (64, 4900), "f32"),
        *norm("v.post_ln", 64),
        *blocks("v", 3, 64, 160),
        ("resampler.pos_embed_k", (wide, 4900), "f32"),
        ("resampler.query", (wide, 64), "f32"),
        ("resampler.proj.weight", (wide, wide), "f16"),
        ("resampler.kv.weight", (64, wide), "f16"),
        *(row for part in ("q", "k", "v", "out") for row in pair(f"resampler.attn.{part}", wide, wide)),
        *(row for part in ("q", "kv", "post") for row in norm(f"resampler.ln_{part}", wide)),
    ]
    return keys, rows


def qwen2vl(*, windows: bool = False) -> tuple[dict[str, object], list[TensorRow]]:
    keys = vision_keys("qwen2.5vl_merger" if windows else "qwen2vl_merger", image_size=560)
    if windows:
        keys["clip.vision.n_wa_pattern"] = 3
    rows: list[TensorRow] = [
        ("v.patch_embd.weight", (14, 14, 3, 64), "f16"),
        ("v.patch_embd.weight.1", (14, 14, 3, 64), "f16"),
        *norm("v.post_ln", 64)[: 1 if windows else 2],
        *blocks("v", 3, 64, 160, gate=windows, norms="weight" if windows else "both"),
        *pair("mm.0", 256, 256),
        *pair("mm.2", 256, TEXT),
    ]
    return keys, rows


def qwen3vl() -> tuple[dict[str, object], list[TensorRow]]:
    keys = vision_keys("qwen3vl_merger", image_size=768, patch_size=16)
    half = TEXT // 2
    rows: list[TensorRow] = [
        ("v.patch_embd.weight", (16, 16, 3, 64), "f16"),
        ("v.patch_embd.weight.1", (16, 16, 3, 64), "f16"),
        ("v.patch_embd.bias", (64,), "f32"),
        ("v.position_embd.weight", (64, 2304), "f32"),
        *norm("v.post_ln", 64),
        *blocks("v", 3, 64, 160, joined=True),
        *norm("v.deepstack.1.norm", 256),
        *pair("v.deepstack.1.fc1", 256, 256),
        *pair("v.deepstack.1.fc2", 256, half),
        *pair("mm.0", 256, 256),
        *pair("mm.2", 256, half),
    ]
    return keys, rows


def glm4v() -> tuple[dict[str, object], list[TensorRow]]:
    keys = vision_keys("glm4v", image_size=336)
    rows: list[TensorRow] = [
        ("v.patch_embd.weight", (14, 14, 3, 64), "f16"),
        ("v.patch_embd.weight.1", (14, 14, 3, 64), "f16"),
        ("v.patch_embd.bias", (64,), "f32"),
        ("v.norm_embd.weight", (64,), "f32"),
        ("v.position_embd.weight", (64, 576), "f32"),
        ("v.post_ln.weight", (64,), "f32"),
        *blocks("v", 3, 64, 160, joined=True, gate=True, biased=False, norms="weight"),
        *pair("mm.patch_merger", 2, 2, 64, 128)[:1],
        ("mm.patch_merger.bias", (128,), "f32"),
        ("mm.model.fc.weight", (128, TEXT), "f16"),
        *norm("mm.post_norm", TEXT),
        ("mm.up.weight", (TEXT, 192), "f16"),
        ("mm.gate.weight", (TEXT, 192), "f16"),
        ("mm.down.weight", (192, TEXT), "f16"),
    ]
    return {**keys, "clip.use_gelu": False, "clip.use_silu": True}, rows


def kimi(*, plane: bool = False) -> tuple[dict[str, object], list[TensorRow]]:
    keys = vision_keys("kimik25" if plane else "kimivl", image_size=448, projector__scale_factor=2)
    if plane:
        keys |= {"clip.vision.image_min_pixels": 784, "clip.vision.image_max_pixels": 313600}
    rows: list[TensorRow] = [
        ("v.patch_embd.weight", (14, 14, 3, 64), "f16"),
        ("v.patch_embd.bias", (64,), "f32"),
        ("v.position_embd.weight", (64, 64, 64) if plane else (64, 4096), "f32"),
        *norm("v.post_ln", 64),
        *blocks("v", 3, 64, 160, joined=plane),
        *norm("mm.input_norm", 64),
        *pair("mm.1", 256, 256),
        *pair("mm.2", 256, TEXT),
    ]
    return keys, rows


def ocr(kind: str) -> tuple[dict[str, object], list[TensorRow]]:
    dots = kind == "dots_ocr"
    keys = vision_keys(kind, image_size=1024, image_min_pixels=3136, image_max_pixels=802816)
    if dots:
        keys["clip.vision.projector.scale_factor"] = 2
    rows: list[TensorRow] = [
        ("v.patch_embd.weight", (14, 14, 3, 64), "f16"),
        ("v.patch_embd.bias", (64,), "f32"),
        *blocks("v", 2, 64, 160, joined=dots, gate=dots, biased=not dots, norms="weight" if dots else "both"),
        *norm("mm.input_norm", 64),
    ]
    if dots:
        rows += [("mm.post_norm.weight", (64,), "f32"), *pair("mm.0", 256, 256), *pair("mm.2", 256, TEXT)]
    else:
        rows += [("v.position_embd.weight", (64, 729), "f32"), *norm("v.post_ln", 64)]
        rows += [*pair("mm.1", 256, 256), *pair("mm.2", 256, TEXT)]
    return {**keys, "clip.vision.block_count": 2}, rows


def nemotron() -> tuple[dict[str, object], list[TensorRow]]:
    keys = vision_keys("nemotron_v2_vl", image_size=128, patch_size=16, projector__scale_factor=2)
    rows: list[TensorRow] = [
        ("v.class_embd", (64, 10), "f32"),
        ("v.patch_embd.weight", (16, 16, 3, 64), "f16"),
        ("v.position_embd.weight", (64, 64), "f32"),
        *blocks("v", 3, 64, 160, joined=True),
        ("mm.model.mlp.0.weight", (256,), "f32"),
        ("mm.model.mlp.1.weight", (256, 512), "f16"),
        ("mm.model.mlp.3.weight", (512, TEXT), "f16"),
    ]
    return keys, rows


def minicpmv46(*, merge: int = 4) -> tuple[dict[str, object], list[TensorRow]]:
    keys = vision_keys("minicpmv4_6", image_size=448, projector__scale_factor=merge, wa_layer_indexes=[1])
    rows: list[TensorRow] = [
        ("v.patch_embd.weight", (14, 14, 3, 64), "f16"),
        ("v.patch_embd.bias", (64,), "f32"),
        ("v.position_embd.weight", (64, 4900), "f32"),
        *norm("v.post_ln", 64),
        *blocks("v", 4, 64, 160),
        *norm("mm.input_norm", 256),
        *pair("mm.up", 256, 320),
        *pair("mm.down", 320, TEXT),
    ]
    if merge == 4:
        name = "v.vit_merger"
        rows += [*norm(f"{name}.ln1", 64), *norm(f"{name}.ds_ln", 256)]
        rows += [row for part in ("q", "k", "v", "out") for row in pair(f"{name}.attn_{part}", 64, 64)]
        rows += [*pair(f"{name}.ds_ffn_up", 256, 320), *pair(f"{name}.ds_ffn_down", 320, 64)]
    return {**keys, "clip.vision.block_count": 4}, rows


def gemma4v() -> tuple[dict[str, object], list[TensorRow]]:
    keys = vision_keys("gemma4v", image_size=224, patch_size=16)
    rows: list[TensorRow] = [
        ("v.patch_embd.weight", (16, 16, 3, 64), "f32"),
        ("v.position_embd.weight", (64, 1024, 2), "f32"),
        *blocks("v", 3, 64, 160, gate=True, biased=False, norms="weight"),
        *(
            (f"v.blk.{block}.{name}.weight", (width,), "f32")
            for block in range(3)
            for name, width in (
                ("attn_q_norm", 16),
                ("attn_k_norm", 16),
                ("attn_post_norm", 64),
                ("ffn_post_norm", 64),
            )
        ),
        ("v.std_bias", (64,), "f32"),
        ("v.std_scale", (64,), "f32"),
        ("mm.input_projection.weight", (64, TEXT), "f16"),
        ("v.blk.0.attn_q.input_max", (1,), "f32"),
    ]
    return keys, rows


def gemma4uv() -> tuple[dict[str, object], list[TensorRow]]:
    keys = vision_keys("gemma4uv", image_size=224, patch_size=16, block_count=0)
    row = 48 * 48 * 3
    rows: list[TensorRow] = [
        ("v.patch_embd.weight", (row, 64), "f16"),
        ("v.patch_embd.bias", (64,), "f32"),
        ("v.position_embd.weight", (64, 128, 2), "f32"),
        *norm("v.patch_norm.1", row),
        *norm("v.patch_norm.2", 64),
        *norm("v.patch_norm.3", 64),
        ("mm.input_projection.weight", (64, TEXT), "f16"),
    ]
    return keys, rows


def audio_keys(kind: str, **more: object) -> dict[str, object]:
    """The keys that every sound encoder has."""
    sizes: dict[str, object] = {
        "embedding_length": 64,
        "attention.head_count": 4,
        "feed_forward_length": 160,
        "block_count": 2,
        "projection_dim": TEXT,
        "attention.layer_norm_epsilon": 1e-5,
        "num_mel_bins": 80,
    }
    sizes.update({key.replace("__", "."): value for key, value in more.items()})
    keys: dict[str, object] = {
        "general.type": "mmproj",
        "clip.has_audio_encoder": True,
        "clip.projector_type": kind,
        "clip.use_gelu": True,
    }
    keys.update((f"clip.audio.{key}", value) for key, value in sizes.items())
    return keys


def _whisper(projector: list[TensorRow]) -> list[TensorRow]:
    return [
        ("a.conv1d.1.weight", (3, 80, 64), "f16"),
        ("a.conv1d.1.bias", (1, 64), "f32"),
        ("a.conv1d.2.weight", (3, 64, 64), "f16"),
        ("a.conv1d.2.bias", (1, 64), "f32"),
        ("a.position_embd.weight", (64, 1500), "f32"),
        *norm("a.post_ln", 64),
        *blocks("a", 2, 64, 160, key_bias=False),
        *projector,
    ]


def ultravox() -> tuple[dict[str, object], list[TensorRow]]:
    rows: list[TensorRow] = [
        ("mm.a.mlp.1.weight", (512, 256), "f16"),
        ("mm.a.mlp.2.weight", (128, TEXT), "f16"),
        ("mm.a.norm_pre.weight", (512,), "f32"),
        ("mm.a.norm_mid.weight", (128,), "f32"),
    ]
    return audio_keys("ultravox", projector__stack_factor=8), _whisper(rows)


def qwen2a() -> tuple[dict[str, object], list[TensorRow]]:
    return audio_keys("qwen2a"), _whisper(pair("mm.a.fc", 64, TEXT))


def voxtral() -> tuple[dict[str, object], list[TensorRow]]:
    rows: list[TensorRow] = [("mm.a.mlp.1.weight", (256, 128), "f16"), ("mm.a.mlp.2.weight", (128, TEXT), "f16")]
    return audio_keys("voxtral", projector__stack_factor=4), _whisper(rows)


def flamingo() -> tuple[dict[str, object], list[TensorRow]]:
    rows = [*pair("mm.a.mlp.1", 64, 128), *pair("mm.a.mlp.2", 128, TEXT)]
    return audio_keys("musicflamingo"), _whisper(rows)


def meralion() -> tuple[dict[str, object], list[TensorRow]]:
    rows = [
        *pair("mm.a.mlp.0", 960, 192),
        *pair("mm.a.mlp.1", 192, 192),
        *pair("mm.a.mlp.2", 192, 192),
        *pair("mm.a.mlp.3", 192, TEXT),
        *norm("mm.a.norm_pre", 960),
    ]
    return audio_keys("meralion", projector__stack_factor=15), _whisper(rows)


def glma() -> tuple[dict[str, object], list[TensorRow]]:
    rows: list[TensorRow] = [
        *pair("mm.a.mlp.1", 256, 128),
        *pair("mm.a.mlp.2", 128, TEXT),
        *norm("mm.a.norm_pre", 64),
        ("v.boi", (TEXT,), "f32"),
        ("v.eoi", (TEXT,), "f32"),
    ]
    return audio_keys("glma", projector__stack_factor=4), _whisper(rows)


def qwen3a() -> tuple[dict[str, object], list[TensorRow]]:
    rows: list[TensorRow] = [
        ("a.conv2d.1.weight", (3, 3, 1, 32), "f16"),
        ("a.conv2d.1.bias", (32,), "f32"),
        ("a.conv2d.2.weight", (3, 3, 32, 32), "f16"),
        ("a.conv2d.2.bias", (32,), "f32"),
        ("a.conv2d.3.weight", (3, 3, 32, 32), "f16"),
        ("a.conv2d.3.bias", (32,), "f32"),
        ("a.conv_out.weight", (320, 64), "f16"),
        ("a.position_embd.weight", (64, 1500), "f32"),
        *norm("a.post_ln", 64),
        *blocks("a", 2, 64, 160),
        *pair("mm.a.mlp.1", 64, 64),
        *pair("mm.a.mlp.2", 64, TEXT),
    ]
    return audio_keys("qwen3a"), rows


def gemma4a() -> tuple[dict[str, object], list[TensorRow]]:
    rows: list[TensorRow] = [
        ("a.conv1d.0.weight", (3, 3, 1, 16), "f32"),
        ("a.conv1d.0.norm.weight", (16,), "f32"),
        ("a.conv1d.1.weight", (3, 3, 16, 8), "f32"),
        ("a.conv1d.1.norm.weight", (8,), "f32"),
        ("a.input_projection.weight", (160, 64), "f16"),
        *pair("a.pre_encode.out", 64, 96),
        ("mm.a.input_projection.weight", (96, TEXT), "f16"),
    ]
    for block in range(2):
        name = f"a.blk.{block}"
        rows += [(f"{name}.attn_{part}.weight", (64, 64), "f16") for part in ("q", "k", "v", "out", "k_rel")]
        rows += [
            (f"{name}.{norm}.weight", (64,), "f32")
            for norm in (
                "ln1",
                "ln2",
                "attn_pre_norm",
                "attn_post_norm",
                "ffn_norm",
                "ffn_norm_1",
                "ffn_post_norm",
                "ffn_post_norm_1",
                "conv_norm",
                "norm_conv",
            )
        ]
        rows += [
            (f"{name}.per_dim_scale.weight", (16,), "f32"),
            (f"{name}.ffn_up.weight", (64, 160), "f16"),
            (f"{name}.ffn_down.weight", (160, 64), "f16"),
            (f"{name}.ffn_up_1.weight", (64, 160), "f16"),
            (f"{name}.ffn_down_1.weight", (160, 64), "f16"),
            (f"{name}.conv_pw1.weight", (64, 128), "f16"),
            (f"{name}.conv_dw.weight", (5, 64), "f32"),
            (f"{name}.conv_pw2.weight", (64, 64), "f16"),
        ]
    return audio_keys("gemma4a"), rows


def gemma4ua() -> tuple[dict[str, object], list[TensorRow]]:
    return audio_keys("gemma4ua", block_count=0), [("mm.a.input_projection.weight", (640, TEXT), "f16")]


def omni() -> tuple[dict[str, object], list[TensorRow]]:
    """Images and sounds in one file, as Qwen2.5-Omni has them."""
    image, image_rows = qwen2vl(windows=True)
    sound, sound_rows = qwen2a()
    return {**image, **sound, "clip.projector_type": "qwen2.5o"}, [*image_rows, *sound_rows]


def mobilenet() -> tuple[dict[str, object], list[TensorRow]]:
    keys = vision_keys("gemma3nv", image_size=256, embedding_length=TEXT, patch_size=1)
    rows: list[TensorRow] = [
        ("v.conv_stem.conv.weight", (3, 3, 3, 16), "f16"),
        ("v.conv_stem.conv.bias", (1, 1, 16), "f32"),
        ("v.conv_stem.bn.weight", (16,), "f32"),
    ]
    for block, wide in ((0, 16), (1, 24)):
        name = f"v.blk.0.{block}"
        rows += [
            (f"{name}.conv_exp.weight", (3, 3, wide, 64), "f16"),
            (f"{name}.bn1.weight", (64,), "f32"),
            (f"{name}.conv_pwl.weight", (1, 1, 64, 24), "f16"),
            (f"{name}.bn2.weight", (24,), "f32"),
        ]
    rows += _inverted("v.blk.1.0", 24, 96, 32, start=3, mid=5)
    rows += _inverted("v.blk.1.1", 32, 64, 32, start=5)
    rows += _inverted("v.blk.2.0", 32, 128, 48, start=5, mid=5)
    rows += _squares("v.blk.2.1", 48, 16)
    rows += _inverted("v.blk.3.0", 48, 160, 64, mid=5)
    rows += _squares("v.blk.3.1", 64, 16)
    rows += [
        ("v.msfa.ffn.pw_exp.conv.weight", (1, 1, 112, 128), "f16"),
        ("v.msfa.ffn.pw_exp.bn.weight", (128,), "f32"),
        ("v.msfa.ffn.pw_proj.conv.weight", (1, 1, 128, TEXT), "f16"),
        ("v.msfa.ffn.pw_proj.bn.weight", (TEXT,), "f32"),
        ("v.msfa.norm.weight", (TEXT,), "f32"),
        ("mm.input_projection.weight", (TEXT, TEXT), "f16"),
        ("mm.soft_emb_norm.weight", (TEXT,), "f32"),
        ("mm.post_proj_norm.weight", (TEXT,), "f32"),
    ]
    return keys, rows


def _inverted(name: str, wide: int, inner: int, out: int, *, start: int = 0, mid: int = 0) -> list[TensorRow]:
    rows: list[TensorRow] = []
    if start:
        rows += [(f"{name}.dw_start.conv.weight", (start, start, 1, wide), "f16")]
        rows += [(f"{name}.dw_start.bn.weight", (wide,), "f32")]
    rows += [
        (f"{name}.pw_exp.conv.weight", (1, 1, wide, inner), "f16"),
        (f"{name}.pw_exp.bn.weight", (inner,), "f32"),
    ]
    if mid:
        rows += [
            (f"{name}.dw_mid.conv.weight", (mid, mid, 1, inner), "f16"),
            (f"{name}.dw_mid.bn.weight", (inner,), "f32"),
        ]
    rows += [
        (f"{name}.pw_proj.conv.weight", (1, 1, inner, out), "f16"),
        (f"{name}.pw_proj.bn.weight", (out,), "f32"),
    ]
    return [*rows, (f"{name}.layer_scale.gamma", (1, 1, out), "f32")]


def _squares(name: str, wide: int, head: int) -> list[TensorRow]:
    rows: list[TensorRow] = [
        (f"{name}.norm.weight", (wide,), "f32"),
        (f"{name}.attn.query.proj.weight", (1, 1, wide, 4 * head), "f16"),
        (f"{name}.attn.output.proj.weight", (1, 1, 4 * head, wide), "f16"),
        (f"{name}.layer_scale.gamma", (1, 1, wide), "f32"),
    ]
    for part in ("key", "value"):
        rows += [
            (f"{name}.attn.{part}.proj.weight", (1, 1, wide, head), "f16"),
            (f"{name}.attn.{part}.down_conv.weight", (3, 3, 1, wide), "f16"),
            (f"{name}.attn.{part}.norm.weight", (wide,), "f32"),
        ]
    return rows


#: Name → what makes its keys and tensors.
TWINS: Mapping[str, Callable[[], tuple[dict[str, object], list[TensorRow]]]] = {
    "gemma3": gemma3,
    "gemma3n": mobilenet,
    "gemma4": gemma4v,
    "gemma4 unified": gemma4uv,
    "gemma4 sound": gemma4a,
    "gemma4 unified sound": gemma4ua,
    "idefics3": idefics3,
    "lfm2": lfm2,
    "phi4": phi4,
    "janus": janus,
    "pixtral": pixtral,
    "mistral3": lambda: pixtral(merger=True),
    "lightonocr": lambda: pixtral(merger=True, breaks=False),
    "internvl": internvl,
    "llama4": llama4,
    "llava": llava,
    "granite": lambda: llava(granite=True),
    "minicpmv": minicpmv,
    "qwen2vl": qwen2vl,
    "qwen2.5vl": lambda: qwen2vl(windows=True),
    "qwen3vl": qwen3vl,
    "qwen2.5 omni": omni,
    "glm4v": glm4v,
    "kimivl": kimi,
    "kimi k2.5": lambda: kimi(plane=True),
    "dots": lambda: ocr("dots_ocr"),
    "paddle": lambda: ocr("paddleocr"),
    "nemotron": nemotron,
    "minicpmv 4.6": minicpmv46,
    "minicpmv 4.6, larger": lambda: minicpmv46(merge=2),
    "ultravox": ultravox,
    "qwen2 sound": qwen2a,
    "qwen3 sound": qwen3a,
    "voxtral": voxtral,
    "flamingo": flamingo,
    "meralion": meralion,
    "glm sound": glma,
}


def gemma3_12b() -> tuple[dict[str, object], list[TensorRow]]:
    """The projector of Gemma 3 12B, true to size, in 16 bits."""
    width, inner = 1152, 4304
    keys = vision_keys(
        "gemma3",
        image_size=896,
        embedding_length=width,
        attention__head_count=16,
        feed_forward_length=inner,
        block_count=27,
        projection_dim=3840,
    )
    rows = [
        ("v.patch_embd.weight", (14, 14, 3, width), "f16"),
        ("v.patch_embd.bias", (width,), "f32"),
        ("v.position_embd.weight", (width, 4096), "f32"),
        *norm("v.post_ln", width),
        *blocks("v", 27, width, inner),
        ("mm.input_projection.weight", (3840, width), "f16"),
        ("mm.soft_emb_norm.weight", (width,), "f32"),
    ]
    return keys, rows


def qwen35_4b() -> tuple[dict[str, object], list[TensorRow]]:
    """The projector of Qwen3.5 4B, true to size, in 16 bits."""
    keys = vision_keys(
        "qwen3vl_merger",
        image_size=768,
        patch_size=16,
        embedding_length=1024,
        attention__head_count=16,
        feed_forward_length=4096,
        block_count=24,
        projection_dim=2560,
        spatial_merge_size=2,
    )
    rows: list[TensorRow] = [
        ("v.patch_embd.weight", (16, 16, 3, 1024), "f32"),
        ("v.patch_embd.weight.1", (16, 16, 3, 1024), "f32"),
        ("v.patch_embd.bias", (1024,), "f32"),
        ("v.position_embd.weight", (1024, 2304), "f32"),
        *norm("v.post_ln", 1024),
        *blocks("v", 24, 1024, 4096, joined=True),
        *pair("mm.0", 4096, 4096),
        *pair("mm.2", 4096, 2560),
    ]
    return keys, rows


def companion(twin: tuple[Mapping[str, object], Sequence[TensorRow]]) -> Companion:
    """The header of *twin*, without a file."""
    keys, rows = twin
    raw, data = header({"general.architecture": "clip", **keys}, rows)
    found = header_from_bytes(raw, "projector.gguf", len(raw) + data)
    return Companion("mmproj", "--mmproj", build_companion(found, "mmproj"))


def write_twin(folder: Path, name: str) -> Path:
    """The file of the twin *name* in *folder*."""
    keys, rows = TWINS[name]()
    return write_gguf(folder / f"{name.replace(' ', '-').replace(',', '')}.gguf", "clip", keys, rows, sparse=False)

"""Which tensors of a projector's file the engine loads for each encoder; what it doesn't ask for stays in the file.

Source: ``tools/mtmd/clip.cpp:clip_model_loader::load_tensors``, build b11434.
"""

from collections.abc import Iterator

from terazi.memory.llama_cpp.projector import Encoder
from terazi.models.spec import Tensor

#: Asked for whatever the kind; ``P`` stands for the encoder's prefix.
_COMMON = """
    v.class_embd P.pre_ln.* P.post_ln.* v.patch_embd.* v.patch_embd.weight.1 v.norm_embd.* P.position_embd.weight
"""
#: The same for each block.
_BLOCK = """
    attn_k.* attn_q.* attn_v.* attn_out.* attn_qkv.* attn_k_norm.weight attn_q_norm.weight ln1.* ln2.* ls1.weight
    ls2.weight out_scale.weight attn_post_norm.weight ffn_post_norm.weight ffn_gate_inp.weight ffn_gate_exps.weight
    ffn_up_exps.weight ffn_down_exps.weight exp_probs_b.weight ffn_up.* ffn_gate.* ffn_down.* attn_sinks
"""
_DEEP = "norm.* fc1.* fc2.*"
#: Gemma 4's conformer asks for more in each block.
_CONFORMER = """
    ffn_norm.weight attn_pre_norm.weight per_dim_scale.weight per_dim_k_scale.weight attn_k_rel.weight conv_norm.*
    conv_pw1.* conv_dw.* norm_conv.* conv_pw2.* ffn_norm_1.weight ffn_up_1.* ffn_down_1.* ffn_post_norm_1.weight
"""
_SOUND = "a.conv1d.1.* a.conv1d.2.*"
_TWO = "mm.1.* mm.2.*"
_ENDS = "mm.0.* mm.2.*"
_RESAMPLER = """
    resampler.pos_embed_k resampler.query resampler.proj.weight resampler.kv.weight resampler.attn.q.*
    resampler.attn.k.* resampler.attn.v.* resampler.attn.out.* resampler.ln_q.* resampler.ln_kv.*
    resampler.ln_post.*
"""
_MERGER = """
    v.vit_merger.ln1.* v.vit_merger.attn_q.* v.vit_merger.attn_k.* v.vit_merger.attn_v.* v.vit_merger.attn_out.*
    v.vit_merger.ds_ln.* v.vit_merger.ds_ffn_up.* v.vit_merger.ds_ffn_down.* mm.input_norm.* mm.up.* mm.down.*
"""
#: Kind → what only it asks for.
_OWN = {
    "mlp": "mm.0.* mm.1.* mm.2.* mm.3.* mm.4.* v.image_newline",
    "resampler": _RESAMPLER,
    "minicpmv4_6": _MERGER,
    "qwen2vl_merger": _ENDS,
    "qwen2.5vl_merger": _ENDS,
    "qwen3vl_merger": _ENDS,
    "exaone4_5": _ENDS,
    "mimovl": _ENDS,
    "ling3vl": f"mm.input_norm.* {_ENDS}",
    "dots_ocr": f"mm.input_norm.* mm.post_norm.weight {_ENDS}",
    "dots3note_v": f"mm.input_norm.* mm.post_norm.weight {_ENDS}",
    "youtuvl": f"mm.input_norm.weight {_ENDS}",
    "phi4": _ENDS,
    "janus_pro": "mm.0.* mm.1.*",
    "step3vl": "mm.0.* mm.1.* mm.model.fc.weight",
    "minimax_m3": f"{_TWO} mm.merger.fc1.* mm.merger.fc2.*",
    "muse-glimmer": "mm.0.weight mm.1.weight mm.2.weight",
    "gemma3": "mm.input_projection.weight mm.soft_emb_norm.weight",
    "gemma4v": "mm.input_projection.weight v.std_bias v.std_scale",
    "gemma4uv": "mm.input_projection.weight v.patch_norm.1.* v.patch_norm.2.* v.patch_norm.3.*",
    "gemma4ua": "mm.a.input_projection.weight",
    "gemma4a": """
        a.conv1d.0.* a.conv1d.1.* a.conv1d.0.norm.weight a.conv1d.1.norm.weight a.input_projection.*
        a.pre_encode.out.* mm.a.soft_emb_norm.weight mm.a.input_projection.weight
    """,
    "idefics3": "mm.model.fc.weight",
    "lfm2": f"mm.input_norm.* {_TWO}",
    "kimivl": f"mm.input_norm.* {_TWO}",
    "kimik25": f"mm.input_norm.* {_TWO}",
    "paddleocr": f"mm.input_norm.* {_TWO}",
    "pixtral": f"{_TWO} v.token_embd.img_break mm.input_norm.weight mm.patch_merger.weight",
    "lightonocr": f"{_TWO} mm.input_norm.weight mm.patch_merger.weight",
    "internvl": "mm.model.mlp.0.* mm.model.mlp.1.* mm.model.mlp.3.*",
    "nemotron_v2_vl": "mm.model.mlp.0.weight mm.model.mlp.1.weight mm.model.mlp.3.weight",
    "llama4": "mm.model.fc.weight mm.model.mlp.1.weight mm.model.mlp.2.weight",
    "glm4v": "mm.model.fc.weight mm.up.* mm.gate.* mm.down.* mm.post_norm.* mm.patch_merger.*",
    "glm5v": "mm.model.fc.weight mm.up.* mm.gate.* mm.down.* mm.post_norm.* mm.patch_merger.*",
    "cogvlm": "mm.model.fc.weight mm.post_fc_norm.* mm.up.weight mm.gate.weight mm.down.weight v.boi v.eoi",
    "ultravox": f"{_SOUND} mm.a.mlp.1.weight mm.a.mlp.2.weight mm.a.norm_pre.weight mm.a.norm_mid.weight",
    "voxtral": f"{_SOUND} mm.a.mlp.1.weight mm.a.mlp.2.weight",
    "musicflamingo": f"{_SOUND} mm.a.mlp.1.* mm.a.mlp.2.*",
    "meralion": f"{_SOUND} mm.a.mlp.0.* mm.a.mlp.1.* mm.a.mlp.2.* mm.a.mlp.3.* mm.a.norm_pre.*",
    "glma": f"{_SOUND} mm.a.mlp.1.* mm.a.mlp.2.* mm.a.norm_pre.* v.boi v.eoi",
    "qwen2a": f"{_SOUND} mm.a.fc.*",
    "qwen3a": "a.conv2d.1.* a.conv2d.2.* a.conv2d.3.* a.conv_out.weight mm.a.mlp.1.* mm.a.mlp.2.*",
}
#: Gemma 3n's MobileNet: whatever begins like this, but for the tables of the text model's embedder.
_MOBILENET = ("v.conv_stem.", "v.blk.", "v.msfa.")


def loaded_tensors(encoder: Encoder, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    """Those of *tensors* that *encoder* takes, in the file's order; None if what its kind takes isn't known."""
    if encoder.kind == "gemma3nv":
        wanted = set(_names(encoder, _COMMON)) | {"mm.input_projection.weight", "mm.soft_emb_norm.weight"}
        return tuple(t for t in tensors if t.name in wanted or t.name.startswith(_MOBILENET))
    own = _OWN.get(encoder.kind)
    if own is None:
        return None
    wanted = {*_names(encoder, _COMMON), *_names(encoder, own)}
    for block in range(encoder.layers):
        wanted.update(f"{encoder.prefix}.blk.{block}.{name}" for name in _names(encoder, _BLOCK))
        wanted.update(f"v.deepstack.{block}.{name}" for name in _names(encoder, _DEEP))
        if encoder.kind == "gemma4a":
            wanted.update(f"{encoder.prefix}.blk.{block}.{name}" for name in _names(encoder, _CONFORMER))
    return tuple(t for t in tensors if t.name in wanted)


def _names(encoder: Encoder, text: str) -> Iterator[str]:
    for word in text.split():
        name = f"{encoder.prefix}{word[1:]}" if word.startswith("P.") else word
        if name.endswith(".*"):
            yield name[:-1] + "weight"
            yield name[:-1] + "bias"
        else:
            yield name

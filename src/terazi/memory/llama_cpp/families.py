"""Model families whose memory rules are known here. An architecture without an entry gets an upper bound."""

from terazi.memory.llama_cpp.blocks import Recurrent
from terazi.memory.llama_cpp.family import Experts, Family, SlidingWindow
from terazi.models.spec import ModelSpec

#: Each is drawn after its file in ``src/models/`` and is held against the engine by a test.
FAMILIES = (
    # no sliding window even if the file names one (Mistral)
    Family(name="llama", architectures=frozenset({"llama"}), rope_factors=True),
    Family(
        name="gemma3",
        architectures=frozenset({"gemma3"}),
        window=SlidingWindow(period=6),
        qk_norm="head",
        scaled_embeddings="rows",
        scaled_queries=True,
        post_norms=True,
    ),
    Family(name="gemma", architectures=frozenset({"gemma"}), scaled_embeddings="whole", scaled_queries=True),
    Family(
        name="gemma2",
        architectures=frozenset({"gemma2"}),
        window=SlidingWindow(period=2, length=4096),
        scaled_embeddings="whole",
        scaled_queries=True,
        post_norms=True,
    ),
    Family(
        name="llama4",
        architectures=frozenset({"llama4"}),
        window=SlidingWindow(period=4, length=8192),
        experts=Experts(gating="sigmoid", normalised=False, weigh_input=True, select_by_logits=True),
        rope="but_fourth",
        rope_factors=True,
        tempered="unturned",
    ),
    Family(
        name="mistral3",
        architectures=frozenset({"mistral3"}),
        rope_factors=True,
        tempered="attention.temperature_scale",
    ),
    Family(name="internlm2", architectures=frozenset({"internlm2"})),
    Family(name="smollm3", architectures=frozenset({"smollm3"}), rope="but_fourth"),
    Family(name="qwen2", architectures=frozenset({"qwen2"})),
    Family(name="qwen3", architectures=frozenset({"qwen3", "qwen3moe"}), qk_norm="head"),
    Family(
        name="olmo2",
        architectures=frozenset({"olmo2"}),
        window=SlidingWindow(period=4),
        qk_norm="flat",
        pre_norms=False,
        post_norms=True,
    ),
    # phi3.cpp switches the window off that its files name
    Family(
        name="phi3",
        architectures=frozenset({"phi3", "phimoe"}),
        rope_factors=True,
        scaled_queries=True,
        residual_first=True,
    ),
    Family(name="starcoder2", architectures=frozenset({"starcoder2"}), norm="norm"),
    Family(name="seed-oss", architectures=frozenset({"seed_oss"}), ffn_norm="post_attention_norm"),
    Family(
        name="exaone4",
        architectures=frozenset({"exaone4"}),
        window=SlidingWindow(period=4),
        qk_norm="head",
        rope="windowed",
        rope_factors=True,
        pre_norms=False,
        post_norms=True,
    ),
    Family(
        name="gpt-oss",
        architectures=frozenset({"gpt-oss"}),
        window=SlidingWindow(period=2),
        experts=Experts(gating="chosen", normalised=False),
        ffn_norm="post_attention_norm",
        select_last=True,
    ),
    Family(name="ernie4.5-moe", architectures=frozenset({"ernie4_5-moe"})),
    Family(
        name="minimax-m2",
        architectures=frozenset({"minimax-m2"}),
        qk_norm="flat",
        experts=Experts(gating="sigmoid"),
    ),
    Family(
        name="granite",
        architectures=frozenset({"granite", "granitemoe"}),
        rope="finetuned",
        rope_factors=True,
        scaled_embeddings="early",
        scaled_residuals=True,
    ),
    Family(
        name="minicpm",
        architectures=frozenset({"minicpm"}),
        rope_factors=True,
        scaled_embeddings="early",
        scaled_residuals=True,
    ),
    Family(
        name="mamba", architectures=frozenset({"mamba"}), recurrent=Recurrent("mamba", layers="all", ffn_norm=None)
    ),
    Family(
        name="mamba2",
        architectures=frozenset({"mamba2"}),
        recurrent=Recurrent("mamba2", layers="all", ffn_norm=None),
    ),
    Family(
        name="rwkv",
        architectures=frozenset({"rwkv6", "rwkv7"}),
        norm="norm",
        recurrent=Recurrent("rwkv", layers="all"),
        drawing="rwkv",
    ),
    Family(
        name="kimi-linear",
        architectures=frozenset({"kimi-linear"}),
        latent=True,
        experts=Experts(gating="sigmoid", by_file=True),
        rope="none",
        recurrent=Recurrent("kimi_delta"),
    ),
    Family(
        name="jamba",
        architectures=frozenset({"jamba"}),
        experts=Experts(normalised=False),
        rope="none",
        residual_first=True,
        recurrent=Recurrent("mamba"),
    ),
    Family(
        name="lfm2",
        architectures=frozenset({"lfm2", "lfm2moe"}),
        experts=Experts(gating="sigmoid", by_file=True),
        # all that attend, if the file names a window
        window=SlidingWindow(period=0),
        qk_norm="head",
        residual_first=True,
        recurrent=Recurrent("short_convolution", output_norm="token_embd_norm"),
    ),
    Family(
        name="granite-hybrid",
        architectures=frozenset({"granitehybrid"}),
        rope="finetuned",
        rope_factors=True,
        scaled_embeddings="early",
        scaled_residuals=True,
        recurrent=Recurrent("mamba2"),
    ),
    Family(
        name="falcon-h1", architectures=frozenset({"falcon-h1"}), recurrent=Recurrent("mamba2", layers="beside")
    ),
    Family(
        name="nemotron-h",
        architectures=frozenset({"nemotron_h", "nemotron_h_moe"}),
        experts=Experts(gating="sigmoid", normalised=False, by_file=True),
        rope="none",
        recurrent=Recurrent("mamba2", layers="without_kv_and_ff", ffn_norm=None, select_after_norm=True),
    ),
    Family(
        name="qwen3-next",
        architectures=frozenset({"qwen3next"}),
        recurrent=Recurrent(
            "delta_net",
            layers="spaced",
            ffn_norm="post_attention_norm",
            select_after_norm=True,
            repeats_heads=True,
        ),
    ),
    Family(
        name="qwen3.5",
        architectures=frozenset({"qwen35", "qwen35moe"}),
        recurrent=Recurrent(
            "delta_net", layers="spaced", ffn_norm="post_attention_norm", select_after_norm=True, positions=4
        ),
    ),
    Family(
        name="deepseek2",
        architectures=frozenset({"deepseek2", "mistral4"}),
        latent=True,
        experts=Experts(normalised=False, by_file=True),
        tempered="attention.temperature_scale",
    ),
    Family(
        name="deepseek3.2",
        architectures=frozenset({"deepseek32", "glm-dsa"}),
        latent=True,
        sparse=True,
        experts=Experts(gating="sigmoid", normalised=False, by_file=True),
    ),
    Family(
        name="deepseek", architectures=frozenset({"deepseek"}), experts=Experts(normalised=False), rope_factors=True
    ),
    Family(name="glm4", architectures=frozenset({"glm4"}), post_norms="pinned", sectioned=True),
    Family(
        name="glm4-moe",
        architectures=frozenset({"glm4moe"}),
        experts=Experts(gating="sigmoid", normalised=False, by_file=True),
        qk_norm="head",
        ffn_norm="post_attention_norm",
        sectioned=True,
    ),
    Family(name="qwen2vl", architectures=frozenset({"qwen2vl"}), sectioned="always"),
    Family(
        name="qwen3vl",
        architectures=frozenset({"qwen3vl", "qwen3vlmoe"}),
        qk_norm="head",
        sectioned="always",
        deep_inputs=True,
    ),
    Family(
        name="qwen2moe",
        architectures=frozenset({"qwen2moe"}),
        experts=Experts(normalised=False, divided_gate=True),
    ),
    Family(
        name="mimo2",
        architectures=frozenset({"mimo2"}),
        window=SlidingWindow(period=6),
        experts=Experts(gating="sigmoid"),
    ),
    Family(name="xverse", architectures=frozenset({"xverse"})),
    Family(name="apertus", architectures=frozenset({"apertus"}), qk_norm="head", rope_factors=True),
    Family(name="chatglm", architectures=frozenset({"chatglm"})),
    Family(name="command-r", architectures=frozenset({"command-r"}), norm="norm", qk_norm="head", parallel="fra"),
    Family(
        name="cohere2",
        architectures=frozenset({"cohere2"}),
        window=SlidingWindow(period=4),
        norm="norm",
        rope="windowed",
        rope_factors=True,
        parallel="fra",
    ),
    Family(
        name="hunyuan",
        architectures=frozenset({"hunyuan-dense", "hunyuan-moe", "hunyuan_vl"}),
        qk_norm="turned",
        rope_factors=True,
        sectioned=True,
    ),
    Family(name="nemotron", architectures=frozenset({"nemotron"}), norm="norm"),
    Family(name="stablelm", architectures=frozenset({"stablelm"}), norm="norm", qk_norm="head", parallel="far"),
    Family(name="gpt2", architectures=frozenset({"gpt2", "starcoder"}), norm="norm", rope="none"),
    Family(name="gptneox", architectures=frozenset({"gptneox"}), norm="norm", parallel="fra"),
    Family(name="phi2", architectures=frozenset({"phi2"}), norm="norm", scaled_queries=True, parallel="afr"),
    Family(name="falcon", architectures=frozenset({"falcon"}), norm="norm", parallel="far"),
    Family(name="plamo", architectures=frozenset({"plamo"}), parallel="far"),
    Family(name="orion", architectures=frozenset({"orion"}), norm="norm"),
    Family(name="olmo", architectures=frozenset({"olmo"}), norm="norm"),
    Family(name="olmoe", architectures=frozenset({"olmoe"}), qk_norm="flat", experts=Experts(normalised=False)),
    Family(name="qwen", architectures=frozenset({"qwen"})),
    Family(name="arcee", architectures=frozenset({"arcee", "exaone"}), rope_factors=True),
    Family(name="ernie4.5", architectures=frozenset({"ernie4_5"})),
    Family(
        name="bailingmoe",
        architectures=frozenset({"bailingmoe"}),
        experts=Experts(normalised=False, by_file=True),
        rope_factors=True,
    ),
    Family(
        name="bailingmoe2",
        architectures=frozenset({"bailingmoe2", "dots1"}),
        experts=Experts(normalised=False, by_file=True),
        qk_norm="head",
    ),
    Family(
        name="exaone-moe",
        architectures=frozenset({"exaone-moe"}),
        window=SlidingWindow(period=4, length=128),
        experts=Experts(normalised=False, by_file=True),
        qk_norm="head",
        rope="windowed",
        rope_factors=True,
    ),
    Family(
        name="gemma4",
        architectures=frozenset({"gemma4"}),
        window=SlidingWindow(period=6),
        own_kv="attention.shared_kv_layers",
        scaled_embeddings="rows",
        drawing="gemma4",
    ),
    Family(
        name="gemma3n",
        architectures=frozenset({"gemma3n"}),
        window=SlidingWindow(period=5),
        own_kv=20,
        scaled_embeddings="rows",
        drawing="gemma3n",
    ),
    Family(
        name="bert", architectures=frozenset({"bert", "jina-bert-v2"}), norm="norm", rope="none", drawing="encoder"
    ),
    Family(
        name="nomic-bert",
        architectures=frozenset({"nomic-bert", "nomic-bert-moe", "jina-bert-v3"}),
        norm="norm",
        experts=Experts(normalised=False),
        drawing="encoder",
    ),
    Family(
        name="modern-bert",
        architectures=frozenset({"modern-bert"}),
        window=SlidingWindow(period=3, dense_first=True),
        norm="norm",
        drawing="encoder",
    ),
    Family(name="eurobert", architectures=frozenset({"eurobert", "neo-bert"}), drawing="encoder"),
    Family(
        name="gemma-embedding",
        architectures=frozenset({"gemma-embedding"}),
        window=SlidingWindow(period=6),
        qk_norm="head",
        scaled_embeddings="rows",
        scaled_queries=True,
        post_norms=True,
        drawing="encoder",
    ),
)

_BY_ARCHITECTURE = {name: family for family in FAMILIES for name in family.architectures}


def family_of(spec: ModelSpec) -> Family | None:
    """The family that *spec* follows, or None if its rules aren't known here (as with blocks without attention)."""
    family = _BY_ARCHITECTURE.get(spec.architecture)
    if family and family.recurrent is None and 0 in spec.head_count_kv:
        return None
    return family

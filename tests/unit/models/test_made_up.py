"""Made-up models: what the header says, read back by our own reader."""

import pytest

from terazi.models.from_gguf import build_spec
from terazi.models.gguf import header_from_bytes
from terazi.models.made_up import MadeUpModel, file_pieces, header


def model(dtype: str = "q4_K", *, tokenizer: bool = False, vocab: int = 256) -> MadeUpModel:
    return MadeUpModel(
        dtype=dtype,
        layers=3,
        embedding=512,
        feed_forward=768,
        heads=8,
        kv_heads=2,
        vocab=vocab,
        tokenizer=tokenizer,
    )


@pytest.mark.parametrize("tokenizer", [False, True])
def test_the_header_says_what_was_asked_for(tokenizer: bool) -> None:
    made = model(tokenizer=tokenizer, vocab=1000)
    pieces = list(file_pieces(made))
    size = sum(map(len, pieces))
    spec = build_spec([header_from_bytes(header(made), size=size)])
    assert (spec.architecture, spec.block_count, spec.embedding_length) == ("llama", 3, 512)
    assert (spec.vocab_size, spec.key_length) == (1000, 64)
    assert set(spec.head_count) == {8}
    assert set(spec.head_count_kv) == {2}
    assert spec.file_bytes == size
    blocks = [t for t in spec.tensors if t.block is not None and len(t.shape) > 1]
    assert {t.dtype for t in blocks} == {"q4_K"}
    assert sum(t.n_bytes for t in blocks) == made.block_bytes


@pytest.mark.parametrize("dtype", ["q4_0", "q4_1", "q5_0", "q6_K", "q8_0", "f16", "bf16", "mxfp4", "iq4_xs"])
def test_every_type_fills_its_tensors(dtype: str) -> None:
    made = model(dtype)
    assert len(b"".join(file_pieces(made))) == len(header(made)) + made.file_bytes


def test_no_piece_is_large() -> None:
    big = MadeUpModel(dtype="f16", layers=1, embedding=1024, feed_forward=4096, heads=16, kv_heads=4)
    assert max(map(len, file_pieces(big))) <= 1 << 20

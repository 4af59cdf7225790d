"""Made-up models against the gguf package: the values that their tensors stand for are small and finite."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from terazi.models.made_up import MadeUpModel, file_pieces


@pytest.mark.parametrize("dtype", ["q4_0", "q4_1", "q5_0", "q4_K", "q5_K", "q6_K", "q8_0", "f16", "bf16", "mxfp4"])
def test_what_the_weights_are(tmp_path: Path, dtype: str) -> None:
    made = MadeUpModel(dtype=dtype, layers=1, embedding=256, feed_forward=512, heads=4, kv_heads=1, tokenizer=True)
    path = tmp_path / "made-up.gguf"
    path.write_bytes(b"".join(file_pieces(made)))
    for tensor in gguf.GGUFReader(path).tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert np.isfinite(values).all(), tensor.name
        assert 0 < np.abs(values).max() < 100, tensor.name

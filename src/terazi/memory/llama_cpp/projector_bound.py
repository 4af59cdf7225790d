"""An upper bound of the compute buffer of encoders whose graph isn't drawn here.

The widest tensors that live at once in any of the drawn layouts, as if attention weren't fused, with room to spare.
Encoders that look at a picture twice (a SAM before a ViT) are counted by the finer of the usual patch sizes.
"""

from math import prod

from terazi.memory.llama_cpp.projector import Encoder
from terazi.memory.llama_cpp.tower import Picture
from terazi.models.spec import Tensor

#: Side of the patches of the second look that some encoders take.
_FINE = 16
_ACTIVATIONS = 16
#: Heads of that second look (``clip.vision.sam.head_count`` of the published models is 12).
_HEADS = 16


def encoder_bound_bytes(
    encoder: Encoder, tensors: tuple[Tensor, ...], picture: Picture, where: list[str]
) -> dict[str, int]:
    """Bytes that the compute buffers on each of *where* (the device first, the host last) can't exceed."""
    sound = encoder.modality != "vision"
    tokens = picture.width if sound else _tokens(encoder, picture)
    matrices = [t.shape for t in tensors if len(t.shape) == 2 and "position" not in t.name and "pos_" not in t.name]
    widest = max((max(shape[:2]) for shape in matrices), default=encoder.width)
    channels = max((prod(t.shape[:3]) for t in tensors if len(t.shape) == 4), default=0)
    heads = max(encoder.heads, _HEADS)
    raw = 4 * picture.width * picture.height * 3
    row = 4 * tokens
    inner = row * (_ACTIVATIONS * encoder.width + 3 * widest + channels)
    scores = row * heads * tokens * 2
    inputs = 2 * raw + row * (tokens + 64)
    sizes = dict.fromkeys(where, inputs + inner + scores)
    if len(where) > 1:
        sizes[where[-1]] = inputs
    return sizes


def _tokens(encoder: Encoder, picture: Picture) -> int:
    patch = min(encoder.patch, _FINE)
    return -(-picture.width // patch) * -(-picture.height // patch)

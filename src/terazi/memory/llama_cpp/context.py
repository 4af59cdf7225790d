"""One context of the engine: the model's, or the second one that speculation makes beside it."""

from typing import NamedTuple

from terazi.memory.llama_cpp.family import Family
from terazi.memory.llama_cpp.resolve import Resolved
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.models.spec import ModelSpec

#: Drafts that read the model's own caches.
CACHELESS = frozenset({"gemma4-assistant"})


class Context(NamedTuple):
    """One context to weigh. With *borrows* its graph uses weights, or caches, of the model itself."""

    spec: ModelSpec
    settings: LlamaCppSettings
    resolved: Resolved
    family: Family | None
    borrows: bool = False

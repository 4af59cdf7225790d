"""The settings of whichever engine a plan is for."""

from typing import TYPE_CHECKING, TypeAlias

from terazi.memory.llama_cpp.settings import LlamaCppSettings

if TYPE_CHECKING:
    from terazi.memory.vllm.settings import VllmSettings

#: One member an engine.
EngineSettings: TypeAlias = "LlamaCppSettings | VllmSettings"


def llama_cpp_settings(settings: EngineSettings) -> LlamaCppSettings:
    """The settings of a plan that is known to be for llama.cpp.

    Raises:
        TypeError: it is for another engine, which is a mistake of the caller.
    """
    if isinstance(settings, LlamaCppSettings):
        return settings
    raise TypeError(f"not llama.cpp's settings: {type(settings).__name__}")

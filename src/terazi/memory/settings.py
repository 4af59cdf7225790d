"""The settings of whichever engine a plan is for."""

from typing import TypeAlias

from terazi.memory.llama_cpp.settings import LlamaCppSettings

#: One member an engine.
EngineSettings: TypeAlias = LlamaCppSettings

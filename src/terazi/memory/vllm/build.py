"""The vLLM whose rules these are; apart, so that naming it costs no more."""

from typing import Final

#: The vLLM that the rules were read from and held against.
BUILD: Final = "0.32.0"

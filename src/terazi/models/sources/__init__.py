"""Where models come from: files on this machine (GGUF, safetensors), and the packaged demo model.

In: a MODEL argument. Out: ``ModelSpec``.
Does I/O; imported only by ``service`` and ``cli``. Reads headers, never weights.
"""

from terazi.errors import UsageError
from terazi.models.sources.demo import demo_path
from terazi.models.sources.local import load_path
from terazi.models.spec import ModelSpec

__all__ = ["demo_path", "load_model"]

_NOT_YET = {
    "hf:": "Download the .gguf file from the model's page and give its path.",
    "ollama:": "Give the path of a .gguf file.",
    "http://": "Download the file and give its path.",
    "https://": "Download the file and give its path.",
}


def load_model(argument: str) -> ModelSpec:
    """Read the header of the model that *argument* names: ``demo``, or a path.

    A path is that of a ``.gguf`` file, or of a safetensors folder, file or index.
    A file called ``demo`` is meant by ``./demo``.

    Raises:
        UsageError: there is no such file, or the kind of source isn't supported.
        ModelFileError: the file can't be read as a model.
    """
    if argument == "demo":
        return load_path(demo_path(), origin="demo")
    for prefix, hint in _NOT_YET.items():
        if argument.startswith(prefix):
            raise UsageError(f"Models from {prefix.rstrip('/')} sources are not supported yet.", hint=hint)
    return load_path(argument, origin=argument)

"""Where models come from: files here, the Hugging Face hub, an https address, Ollama's store, the demo package.

In: a MODEL argument. Out: ``ModelSpec``.
Does I/O; imported only by ``service`` and ``cli``. Reads headers, never weights.
"""

from terazi.models.sources.demo import demo_path
from terazi.models.sources.local import load_local_companion, load_path
from terazi.models.spec import ModelSpec

__all__ = ["demo_path", "load_companion", "load_model"]

# The client of the hub and the readers of rarer formats are imported when they are needed: start-up counts.


def load_model(argument: str) -> ModelSpec:
    """Read the header of the model that *argument* names.

    ``demo``; a path of a ``.gguf`` file, of a safetensors folder, file or index, or of a ``config.json``;
    ``hf:org/repo[@revision][:file|:quant]``; ``https://…/model.gguf``; ``ollama:name[:tag]``. A file of such a name
    is ``./hf:…``.

    Raises:
        UsageError: it names no model.
        SourceError: a model elsewhere can't be reached.
        ModelFileError: the file can't be read as a model.
    """
    if argument == "demo":
        return load_path(demo_path(), origin="demo")
    if argument.startswith("hf:"):
        from terazi.models.sources.hub import load_hub

        return load_hub(argument, origin=argument)
    if argument.startswith(("https://", "http://")):
        from terazi.models.sources.hub import load_url

        return load_url(argument, origin=argument)
    if argument.startswith("ollama:"):
        from terazi.models.sources.ollama import load_ollama

        return load_ollama(argument, origin=argument).spec
    return load_path(argument, origin=argument)


def load_companion(argument: str, part: str, *, origin: str) -> ModelSpec:
    """The header of a file that goes beside a model (``mmproj``, ``lora``, ``control-vector``): here or on the hub.

    Raises:
        UsageError: there is no such file.
        SourceError: it is elsewhere and can't be reached.
        ModelFileError: it can't be read, or is no file of that kind.
    """
    if argument.startswith("hf:"):
        from terazi.models.sources.hub import load_hub_companion

        return load_hub_companion(argument, part, origin=origin)
    return load_local_companion(argument, part, origin=origin)

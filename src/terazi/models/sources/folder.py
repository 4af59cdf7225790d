"""Reads safetensors models and bare configs on this machine: a folder, a file, an index, a ``config.json``."""

import os
from collections.abc import Sequence

from terazi.errors import ModelFileError, UsageError
from terazi.models.from_safetensors import (
    FILES_LIMIT,
    INDEX_LIMIT_BYTES,
    Index,
    build_spec,
    check_index,
    read_index,
)
from terazi.models.gguf_window import display
from terazi.models.hf_config import CONFIG_LIMIT_BYTES, HfConfig, parse_config
from terazi.models.layout import CONFIG, INDEX_SUFFIX, TOKENIZER_CONFIG, choose_files, config_for, has_template
from terazi.models.safetensors import SafetensorsHeader, read_header
from terazi.models.sources.files import absolute, listing, opened, read_whole
from terazi.models.spec import ModelSpec


def load_folder(folder: str, *, origin: str) -> ModelSpec:
    """The safetensors model in *folder*, whichever way its files are laid out.

    Raises:
        UsageError: there is no such folder.
        ModelFileError: it holds no model, or one that can't be read.
    """
    folder = absolute(folder)
    names = listing(folder)
    choice = choose_files(names)
    if choice is None:
        raise no_model(folder, names)
    return _load(folder, names, choice, origin=origin)


def load_safetensors(path: str, *, origin: str) -> ModelSpec:
    """The model that the file *path*, or the index *path*, belongs to; its config lies beside it.

    Raises:
        UsageError: there is no such file.
        ModelFileError: it can't be read as a model.
    """
    folder, name = os.path.split(absolute(path))
    names = listing(folder)
    if name not in names:
        with opened(path):  # says what is wrong with it
            pass
    return _load(folder, names, (name,), origin=origin)


def load_config(path: str, *, origin: str) -> ModelSpec:
    """What the architecture of the config *path* makes of it; no weights are needed.

    Raises:
        UsageError: there is no such file.
        ModelFileError: it is no model's config, or of a family whose tensors aren't known.
    """
    from terazi.models.from_config import build_config_spec

    path = absolute(path)
    config = parse_config(read_whole(path, CONFIG_LIMIT_BYTES), display(path))
    return build_config_spec(config, name=model_name(path), origin=origin)


def model_name(path: str) -> str:
    """What to call the model at *path*: its folder, or for a download cache the repository."""
    folder = path if not os.path.splitext(path)[1] else os.path.dirname(path)  # noqa: PTH120, PTH122 - as above
    parts = [part for part in folder.split("/") if part]
    repository = next((part for part in reversed(parts) if part.startswith("models--")), None)
    if repository is not None:
        return repository.removeprefix("models--").replace("--", "/")
    return parts[-1] if parts else path


def no_model(folder: str, names: Sequence[str]) -> ModelFileError:
    """Why *folder*, which holds *names*, can't be weighed, and what would do."""
    ggufs = [display(name) for name in names if name.endswith(".gguf")]
    if ggufs:
        hint = f"Give one of the files in it, such as {ggufs[0]}."
    elif any(name.startswith("adapter_model") for name in names):
        hint = "It holds an adapter; give its base model."
    elif CONFIG in names:
        hint = f"It holds no safetensors files; weigh its config alone: {display(os.path.join(folder, CONFIG))}"  # noqa: PTH118 - as above
    else:
        hint = "Give a .gguf file, a folder with safetensors files, or a config.json."
    return ModelFileError(f"{display(folder)} is a directory without a model.", hint=hint)


def _load(folder: str, names: Sequence[str], choice: tuple[str, ...], *, origin: str) -> ModelSpec:
    config = _config(folder, names, choice[0])
    index: Index | None = None
    if choice[0].endswith(INDEX_SUFFIX):
        index = read_index(read_whole(_in(folder, choice[0]), INDEX_LIMIT_BYTES), display(choice[0]))
        missing = [file for file in index.files if file not in names]
        if missing:
            raise ModelFileError(
                f"{len(missing)} of the {len(index.files)} files of {display(folder)} are missing, "
                f"such as {display(missing[0])}.",
                hint="Let the download finish, or download them again.",
            )
        choice = index.files
    if len(choice) > FILES_LIMIT:
        raise ModelFileError(f"{display(folder)} holds {len(choice):,} files.", hint="Give one model's folder.")
    headers = [_header(_in(folder, name), i) for i, name in enumerate(choice)]
    if index is not None:
        check_index(index, headers, display(folder))
    return build_spec(
        config, headers, name=model_name(folder), origin=origin, chat_template=_has_template(folder, names)
    )


def _header(path: str, file_index: int) -> SafetensorsHeader:
    with opened(path) as (fetch, size):
        return read_header(fetch, size, path, file_index=file_index)


def _config(folder: str, names: Sequence[str], weights: str) -> HfConfig:
    name = config_for(names, weights)
    if name is None:
        adapter = "adapter_config.json" in names
        raise ModelFileError(
            f"{display(folder)} holds {'an adapter' if adapter else 'weights'} but no {CONFIG}.",
            hint="Give its base model." if adapter else f"Download the model's {CONFIG} into the same folder.",
        )
    path = _in(folder, name)
    return parse_config(read_whole(path, CONFIG_LIMIT_BYTES), display(path))


def _has_template(folder: str, names: Sequence[str]) -> bool:
    text = b""
    if TOKENIZER_CONFIG in names:
        try:
            text = read_whole(_in(folder, TOKENIZER_CONFIG), CONFIG_LIMIT_BYTES, whole=False)
        except (ModelFileError, UsageError):
            text = b""
    return has_template(names, text)


def _in(folder: str, name: str) -> str:
    return os.path.join(folder, name)  # noqa: PTH118 - as above

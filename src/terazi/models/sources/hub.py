"""Reads models on the Hugging Face hub, or at any https address, by their headers alone.

Through ``huggingface_hub``: its client, endpoint (``HF_ENDPOINT``), token (``HF_TOKEN``), offline switch
(``HF_HUB_OFFLINE``) and cache. A file that is in the cache already costs no request. What travels otherwise: one
request that lists the repository (none for a named GGUF file or config), and at most two for each file's header,
each of which the hub may redirect to where the file lies.
"""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from terazi.errors import ModelFileError, SourceError, TeraziError, UsageError

try:
    from huggingface_hub import constants, get_session, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import OfflineModeIsEnabled
except ValueError as error:  # the library takes HF_ENDPOINT apart as it is imported
    raise UsageError(
        f"HF_ENDPOINT is no address: {error}.", hint="Unset it, or give https://host or http://host:port."
    ) from error

from terazi.models.companions import build_companion
from terazi.models.from_config import build_config_spec
from terazi.models.from_gguf import build_spec as build_gguf_spec
from terazi.models.from_safetensors import INDEX_LIMIT_BYTES, build_spec, check_index, read_index
from terazi.models.gguf import GgufHeader
from terazi.models.gguf import read_header as read_gguf
from terazi.models.gguf_window import display
from terazi.models.hf_config import CONFIG_LIMIT_BYTES, HfConfig, parse_config
from terazi.models.hub import (
    PREFIX,
    HubReference,
    choose_gguf,
    choose_projector,
    parse_page,
    parse_reference,
    quants,
)
from terazi.models.layout import (
    CONFIG,
    INDEX_SUFFIX,
    SUFFIX,
    TOKENIZER_CONFIG,
    choose_files,
    config_for,
    has_template,
)
from terazi.models.safetensors import FIRST_BYTES, SafetensorsHeader
from terazi.models.safetensors import read_header as read_safetensors
from terazi.models.sources.files import opened, read_whole
from terazi.models.sources.listing import credentials, list_repository
from terazi.models.sources.local import load_local_companion, load_path
from terazi.models.sources.parallel import each
from terazi.models.sources.remote import FIRST_BYTES as GGUF_FIRST_BYTES
from terazi.models.sources.remote import RemoteFile
from terazi.models.spec import ModelSpec
from terazi.models.split import other_parts

_SHOWN: Final = 8


def load_hub(text: str, *, origin: str) -> ModelSpec:
    """The model that ``hf:org/repo[@revision][:file|:quant]`` means.

    Raises:
        UsageError: it names nothing, or offline mode forbids to look.
        SourceError: the hub can't be reached, or says no.
        ModelFileError: what it gives is no model.
    """
    reference = parse_reference(text)
    if reference.file is not None:
        return _load_file(reference, reference.file, (), origin=origin)
    names, commit = _list(reference)
    file = choose_gguf(names, reference.quant)
    if file is not None:
        return _load_file(reference.of(file, commit), file, names, origin=origin)
    if reference.quant is not None:
        raise _no_such_quant(reference, names)
    # folders of a repository hold the same weights in another layout, or another part's
    choice = choose_files([name for name in names if "/" not in name])
    if choice is None:
        raise _nothing_there(reference, names)
    return _load_safetensors(reference.of("", commit), names, choice, origin=origin)


def load_hub_companion(text: str, part: str, *, origin: str) -> ModelSpec:
    """The file *text* of a repository that goes beside a model: ``mmproj``, ``lora`` or ``control-vector``.

    Raises:
        UsageError, SourceError, ModelFileError: as ``load_hub``; or it is no file of that kind.
    """
    reference = parse_reference(text)
    cached = _cached(reference, reference.file or "")
    if cached is not None:
        return load_local_companion(cached, part, origin=origin)
    with _open(reference, reference.file or "") as remote:
        return build_companion(read_gguf(remote.fetch, remote.size, str(reference)), part, origin=origin)


def load_url(url: str, *, origin: str) -> ModelSpec:
    """The GGUF or safetensors file at *url*; an address of the hub's own is read as a reference to it.

    Raises:
        UsageError, SourceError, ModelFileError: as ``load_hub``.
    """
    page = parse_page(url, constants.ENDPOINT)
    if page is not None and page.file is not None:
        return _load_file(page, page.file, (), origin=origin)
    path = url.partition("?")[0]
    if not path.endswith(".gguf"):
        raise UsageError(
            f"{display(url[:200])} is no address of a .gguf file.",
            hint="Give https://host/path/model.gguf, or hf:org/repo for a model on the Hugging Face hub.",
        )
    query = url.removeprefix(path)
    return _load_gguf(path, lambda part: RemoteFile(get_session(), part + query, {}, label=part), origin=origin)


def read_head(name: str, n_bytes: int) -> bytes:
    """The first *n_bytes* of a GGUF file that isn't here, by the name that its ``ModelFile`` has.

    Raises:
        SourceError: it can't be reached, or is another file by now.
    """
    remote = _open_part(name) if name.startswith(PREFIX) else RemoteFile(get_session(), name, {}, label=name)
    with remote:
        return remote.fetch(0, n_bytes)


def names_of(text: str) -> list[str]:
    """The files of the repository that *text* names, in the hub's order.

    Raises:
        UsageError, SourceError: as ``load_hub``.
    """
    return _list(parse_reference(text))[0]


def projector_of(text: str) -> str | None:
    """The multimodal projector that llama.cpp's ``-hf`` loads beside the model *text*, as a MODEL; None if none.

    Raises:
        UsageError, SourceError: as ``load_hub``.
    """
    reference = parse_reference(text)
    names, commit = _list(reference)
    model = reference.file or choose_gguf(names, reference.quant)
    projector = choose_projector(names, model) if model else None
    return str(reference.of(projector, commit)) if projector else None


def _load_file(reference: HubReference, file: str, names: Sequence[str], *, origin: str) -> ModelSpec:
    cached = _cached(reference, file)
    if file.endswith(".gguf"):
        if cached is not None:
            try:
                return load_path(cached, origin=origin)
            except ModelFileError:
                pass  # a cache may hold some parts only
        return _load_gguf(str(reference), _open_part, origin=origin)
    if file.endswith((SUFFIX, INDEX_SUFFIX)):
        if not names:
            names, commit = _list(reference)
            reference = reference.of(file, commit)
        if file not in names:
            raise _no_such_file(reference, names)
        return _load_safetensors(reference, names, (file,), origin=origin)
    return build_config_spec(_config(reference, file), name=reference.repository, origin=origin)


def _load_gguf(first: str, open_part: Callable[[str], RemoteFile], *, origin: str) -> ModelSpec:
    """A GGUF model whose parts are named as *first* is, number by number."""

    def read(part: str, index: int) -> GgufHeader:
        with open_part(part) as remote:
            return read_gguf(remote.fetch, remote.size, part, file_index=index)

    head = read(first, 0)
    parts = other_parts(head)
    rest = each(lambda i: read(parts[i], i + 1), len(parts), say=_say(len(parts) + 1))
    return build_gguf_spec((head, *rest), origin=origin)


def _load_safetensors(
    reference: HubReference, names: Sequence[str], choice: tuple[str, ...], *, origin: str
) -> ModelSpec:
    config_name = config_for(names, choice[0])
    if config_name is None:
        raise ModelFileError(
            f"{reference.repository} holds weights but no {CONFIG}.", hint="Give the repository of the whole model."
        )
    config = _config(reference, config_name)
    index = None
    if choice[0].endswith(INDEX_SUFFIX):
        index = read_index(_small(reference, choice[0], INDEX_LIMIT_BYTES), display(choice[0]))
        choice = index.files

    def read(i: int) -> SafetensorsHeader:
        cached = _cached(reference, choice[i])
        if cached is not None:
            with opened(cached) as (fetch, size):
                return read_safetensors(fetch, size, cached, file_index=i)
        with _open(reference, choice[i], first_bytes=FIRST_BYTES, exact=True) as remote:
            return read_safetensors(remote.fetch, remote.size, str(reference.of(choice[i])), file_index=i)

    headers = each(read, len(choice), say=_say(len(choice)))
    if index is not None:
        check_index(index, headers, reference.repository)
    tokenizer = b""
    if TOKENIZER_CONFIG in names and not has_template(names, b""):
        tokenizer = _small(reference, TOKENIZER_CONFIG, CONFIG_LIMIT_BYTES)
    return build_spec(
        config,
        headers,
        name=reference.repository,
        origin=origin,
        chat_template=has_template(names, tokenizer),
    )


def _config(reference: HubReference, file: str) -> HfConfig:
    return parse_config(_small(reference, file, CONFIG_LIMIT_BYTES), str(reference.of(file)))


def _small(reference: HubReference, file: str, limit: int) -> bytes:
    """The whole small *file*, or one byte more than *limit* of a larger one."""
    cached = _cached(reference, file)
    if cached is not None:
        return read_whole(cached, limit)
    with _open(reference, file, exact=True) as remote:
        return remote.fetch(0, min(remote.size, limit + 1))


def _open_part(part: str) -> RemoteFile:
    reference = parse_reference(part)
    return _open(reference, reference.file or "")


def _open(
    reference: HubReference, file: str, *, first_bytes: int = GGUF_FIRST_BYTES, exact: bool = False
) -> RemoteFile:
    _check_online(reference)
    url = hf_hub_url(reference.repository, file, revision=reference.revision)
    label = str(reference.of(file))
    return RemoteFile(get_session(), url, credentials(), label=label, first_bytes=first_bytes, exact=exact)


def _list(reference: HubReference) -> tuple[list[str], str | None]:
    """The repository's files in the hub's order, and the commit that they are of."""
    if constants.is_offline_mode():
        names = _cached_names(reference)
        if names:
            return names, None
        _check_online(reference)
    try:
        return list_repository(reference)
    except TeraziError:
        raise
    except OfflineModeIsEnabled:
        raise _offline(reference) from None
    except Exception as error:
        # whatever the library or its transport raises: the hub could not be asked
        names = _cached_names(reference)
        if names:
            return names, None
        raise SourceError(
            f"{reference}: the Hugging Face hub can't be asked ({type(error).__name__}).",
            hint="Check the network and HF_ENDPOINT, or download the file and give its path.",
        ) from None


def _cached(reference: HubReference, file: str) -> str | None:
    """Where the cache holds *file*; None if it doesn't."""
    try:
        found = try_to_load_from_cache(reference.repository, file, revision=reference.revision)
    except ValueError:  # a name that leads out of the repository
        return None
    return found if isinstance(found, str) else None


def _cached_names(reference: HubReference) -> list[str]:
    """The files of a repository that the cache holds, of the revision that is asked for."""
    folder_name = "models--" + reference.repository.replace("/", "--")
    home = os.path.join(constants.HF_HUB_CACHE, folder_name)  # noqa: PTH118 - the rest of this room uses os as well
    commit = reference.revision or constants.DEFAULT_REVISION
    with suppress(UsageError, ModelFileError):  # it is a commit itself, or nothing that is here
        commit = read_whole(f"{home}/refs/{commit}", 64).decode("ascii", "replace").strip()
    top = f"{home}/snapshots/{commit}"
    return sorted(
        os.path.relpath(os.path.join(folder, name), top)  # noqa: PTH118 - as above
        for folder, _, names in os.walk(top)
        for name in names
    )


def _check_online(reference: HubReference) -> None:
    if constants.is_offline_mode():
        raise _offline(reference)


def _offline(reference: HubReference) -> UsageError:
    return UsageError(
        f"{reference} is not in the cache, and HF_HUB_OFFLINE forbids to look it up.",
        hint="Unset HF_HUB_OFFLINE, or give the path of a file that is here.",
    )


def _no_such_file(reference: HubReference, names: Sequence[str]) -> UsageError:
    return UsageError(f"{reference.repository} has no file {display(reference.file or '')}.", hint=_offer(names))


def _no_such_quant(reference: HubReference, names: Sequence[str]) -> UsageError:
    there = quants(names)
    if not there:
        return UsageError(f"{reference.repository} has no GGUF files.", hint=_offer(names))
    more = f" and {len(there) - 2 * _SHOWN} more" if len(there) > 2 * _SHOWN else ""
    return UsageError(
        f"{reference.repository} has no {display(reference.quant or '')}.",
        hint=f"There are {display(', '.join(there[: 2 * _SHOWN]))}{more}.",
    )


def _nothing_there(reference: HubReference, names: Sequence[str]) -> UsageError:
    message = f"{reference.repository} holds neither GGUF nor safetensors files."
    if CONFIG in names:
        return UsageError(message, hint=f"Its config alone can be weighed: hf:{reference.repository}:{CONFIG}")
    return UsageError(message, hint=_offer(names))


def _offer(names: Sequence[str]) -> str:
    models = [name for name in names if name.endswith((".gguf", SUFFIX))] or list(names)
    more = f" and {len(models) - _SHOWN} more" if len(models) > _SHOWN else ""
    return f"There are {display(', '.join(models[:_SHOWN]))}{more}." if models else "It is empty."


def _say(total: int) -> Callable[[int], None]:
    """Progress for people, on a terminal, where there is something to wait for."""
    if total < 4 or not sys.stderr.isatty():
        return lambda _done: None

    def say(done: int) -> None:
        end = "\r\033[K" if done == total else ""
        print(f"\rreading headers: {done} of {total}{end}", end="", file=sys.stderr, flush=True)

    return say

"""The models that clients fetch and make while the service runs, kept under ``models/`` in its state.

``catalogue.json`` says what there is: files (pulled, uploaded, or named where they lie) and presets (further names
of a served model, with defaults). Serving is the shelf's business: what comes is put on it cold, what goes is taken
off it once it is idle.
"""

import asyncio
import shutil
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from terazi.errors import ServiceError, SourceError, TeraziError, UsageError
from terazi.gateway.backend import Served
from terazi.gateway.library import ForeignModelError, NewModel, NoSuchModelError, Preset, Progress
from terazi.models.hub import PREFIX, HubReference, parse_reference
from terazi.models.sources import load_model
from terazi.models.sources.download import INCOMPLETE
from terazi.service.blobs import Blobs
from terazi.service.catalogue import Catalogue, Held
from terazi.service.pulling import Pull

#: Left free on the disk whatever is fetched.
_SPARE_BYTES: Final = 1024**3
_HUB_HOSTS: Final = ("hf.co/", "huggingface.co/", "https://hf.co/", "https://huggingface.co/")


class Shelf(Protocol):
    """What the library needs of whoever serves models."""

    def find(self, name: str) -> Served | None:
        """The served model that *name* means."""
        ...

    async def check_model(self, source: str) -> None:
        """Weigh *source* by its header alone, which may be elsewhere.

        Raises:
            TeraziError: it would never fit, or can't be read.
        """
        ...

    async def add_model(self, source: str, *, names: Sequence[str]) -> str:
        """Serve the model *source* (as ``terazi weigh`` takes it) from now on, cold, under its own id and *names*.

        Its id. A source that is served already only gets the names.

        Raises:
            TeraziError: it can't be read, or one of its names is another model's.
        """
        ...

    async def remove_model(self, model: str) -> None:
        """Serve the model with the id *model* no more; returns when it is idle and unloaded."""
        ...

    async def rename_model(self, model: str, names: Sequence[str]) -> None:
        """Let *names* be the names under which *model* is found beside its id and those of its configuration."""
        ...

    async def keep_model(self, model: str, idle_s: float | None) -> None:
        """Until it is unloaded, *model* goes after *idle_s* without a request; None is never."""
        ...

    def idle_left_s(self, model: str) -> float | None:
        """Seconds until *model* is unloaded, if no request comes; None is never."""
        ...


class ModelLibrary:
    """The gateway's ``Library``.

    Args:
        home: the folder that it keeps its files in.
        shelf: where models are served.
    """

    def __init__(self, home: Path, shelf: Shelf) -> None:
        self._home = home
        self._shelf = shelf
        self._catalogue = Catalogue(home / "catalogue.json")
        self._blobs = Blobs(home / "blobs")
        self._pulls: dict[str, Pull] = {}
        self._changing = asyncio.Lock()

    async def open(self) -> list[str]:
        """Serve what an earlier run had, cold; a sentence for each that can't be served any more."""
        gone = []
        for held in self._catalogue.files():
            try:
                await self._shelf.add_model(held.source, names=self._catalogue.names_of(held.model))
            except Exception as error:  # whatever is wrong with one must not keep the service down
                gone.append(f"{held.name} isn't served: {error}")
        for preset in self._catalogue.presets():
            base = self._shelf.find(preset.base)
            if base is not None:
                await self._shelf.rename_model(base.card.id, self._catalogue.names_of(base.card.id))
        return gone

    async def close(self) -> None:
        """End the downloads; what came stays."""
        for pull in tuple(self._pulls.values()):
            await pull.cancel()

    # --- pull

    async def pull(self, name: str, *, local: bool) -> AsyncGenerator[Progress]:
        """As ``Library`` has it."""
        reference = hub_reference(name)
        if reference is None:
            async with aclosing(self._register(name, local=local)) as steps:
                async for step in steps:
                    yield step
            return
        key = str(reference)
        pull = self._pulls.get(key)
        if pull is None or pull.unwanted:
            if self._catalogue.file(name_of(reference)) is None:
                await self._shelf.check_model(key)  # forty gigabytes that never fit needn't travel
            pull = self._pulls.get(key)  # somebody else may have begun meanwhile
        if pull is None or pull.unwanted:
            pull = self._pulls[key] = Pull(reference, self._folder(reference), self._arrived, room=self._check_room)
        async with aclosing(pull.follow()) as steps:
            async for step in steps:
                yield step
        if self._pulls.get(key) is pull:
            del self._pulls[key]

    def _folder(self, reference: HubReference) -> Path:
        return self._home / "hub" / reference.repository

    def _check_room(self, needed_bytes: int) -> None:
        """Raises ``ServiceError`` if the disk has no room for so many bytes more."""
        self._home.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._home).free
        if needed_bytes + _SPARE_BYTES > free:
            raise ServiceError(
                f"there is no room: {needed_bytes / 1e9:.1f} GB are needed in {self._home}, "
                f"and {free / 1e9:.1f} GB are free",
                hint="delete models that aren't used, or set TERAZI_HOME to a folder on a larger disk",
            )

    async def _arrived(self, reference: HubReference, files: Sequence[Path], digest: str) -> None:
        """Serve what was fetched. A file that is no model goes again."""
        try:
            await asyncio.to_thread(load_model, str(files[0]))
        except Exception:
            for path in files:
                path.unlink(missing_ok=True)
            raise
        await self._put(
            Held(
                name=name_of(reference),
                model="",
                source=str(files[0]),
                digest=digest,
                modified=_now(),
                files=tuple(map(str, files)),
            )
        )

    async def _register(self, name: str, *, local: bool) -> AsyncGenerator[Progress]:
        """A model that is served already, or a file where it lies."""
        path = local_path(name)
        if path is None:
            if self._shelf.find(name) is not None or self._catalogue.preset(name) is not None:
                yield Progress(status="success")
                return
            raise UsageError(
                f"'{name}' can't be pulled: models come from the Hugging Face hub",
                hint="say hf.co/org/repo:QUANT, or the path of a .gguf file of this machine",
            )
        if not local:
            raise ForeignModelError(
                "only clients on the service's own machine may name its files", hint="pull it from the hub instead"
            )
        yield Progress(status="reading model metadata")
        await asyncio.to_thread(load_model, path)
        held = Held(name=path, model="", source=path, digest="", modified=_now(), files=())
        await self._put(held)
        yield Progress(status="writing manifest")
        yield Progress(status="success")

    async def _put(self, held: Held) -> None:
        async with self._changing:
            try:
                model = await self._shelf.add_model(held.source, names=(held.name,))
            except TeraziError:
                self._catalogue.put(held)  # it is here, if it can't be served now: it can be deleted
                raise
            self._catalogue.put(replace(held, model=model))
            await self._shelf.rename_model(model, self._catalogue.names_of(model))

    # --- names

    async def copy(self, source: str, destination: str) -> None:
        """As ``Library`` has it."""
        known = self._catalogue.preset(source)
        base = self._base(source)
        made = Preset(name=checked_name(destination), base=base.card.id, modified=_now())
        if known is not None:
            made = replace(known, name=made.name, modified=made.modified)
        await self._name(made)

    async def create(self, wanted: NewModel) -> None:
        """As ``Library`` has it."""
        name = checked_name(wanted.name)
        if wanted.base is None:
            base = await self._from_upload(name, wanted)
        else:
            base = self._base(wanted.base).card.id
            known = self._catalogue.preset(wanted.base)
            if known is not None:
                wanted = replace(
                    wanted,
                    system=wanted.system or known.system,
                    parameters={**known.parameters, **wanted.parameters},
                    messages=wanted.messages or known.messages,
                )
        await self._name(
            Preset(
                name=name,
                base=base,
                modified=_now(),
                system=wanted.system,
                parameters=wanted.parameters,
                messages=wanted.messages,
            )
        )

    async def _from_upload(self, name: str, wanted: NewModel) -> str:
        """Serve one uploaded file under a file name of its own."""
        if len(wanted.files) != 1:
            raise UsageError("'files' must name one .gguf file", hint="split models can be pulled")
        ((file, digest),) = wanted.files.items()
        blob = self._blobs.path(digest)
        if blob is None:
            raise UsageError(f"{digest} was not uploaded", hint="send it to /api/blobs first")
        target = self._home / "made" / name.replace(":", "-").replace("/", "-") / Path(file).name
        if target.suffix != ".gguf":
            raise UsageError(f"'{file}' is no .gguf file", hint="convert the model first")
        target.parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(load_model, str(blob))
        target.unlink(missing_ok=True)
        target.hardlink_to(blob)
        held = Held(
            name=name, model="", source=str(target), digest=digest, modified=_now(), files=(str(target), str(blob))
        )
        await self._put(held)
        found = self._catalogue.file(name)
        if found is None:
            raise SourceError(f"{name} could not be kept", hint="see the service's log")
        return found.model

    def _base(self, name: str) -> Served:
        preset = self._catalogue.preset(name)
        found = self._shelf.find(name if preset is None else preset.base)
        if found is None:
            raise NoSuchModelError(f"model '{name}' not found", hint="terazi ps lists what is served")
        return found

    async def _name(self, preset: Preset) -> None:
        async with self._changing:
            other = self._shelf.find(preset.name)
            if other is not None and self._catalogue.preset(preset.name) is None and other.card.id != preset.base:
                raise UsageError(f"'{preset.name}' is the name of another model", hint="choose another name")
            self._catalogue.put_preset(preset)
            await self._shelf.rename_model(preset.base, self._catalogue.names_of(preset.base))

    def pulled(self) -> tuple[Preset, ...]:
        """As ``Library`` has it."""
        return tuple(
            Preset(name=held.name, base=held.model, modified=held.modified)
            for held in self._catalogue.files()
            if held.name.startswith(_HUB_HOSTS[0])
        )

    def presets(self) -> tuple[Preset, ...]:
        """As ``Library`` has it."""
        return self._catalogue.presets()

    def preset(self, name: str) -> Preset | None:
        """As ``Library`` has it."""
        return self._catalogue.preset(name)

    # --- delete

    async def delete(self, name: str) -> None:
        """As ``Library`` has it."""
        async with self._changing:
            preset = self._catalogue.preset(name)
            if preset is not None:
                self._catalogue.drop(preset.name)
                if self._catalogue.file(preset.name) is None:
                    await self._shelf.rename_model(preset.base, self._catalogue.names_of(preset.base))
                    return
            held = self._catalogue.file(name)
            served = self._shelf.find(name)
            if held is None and served is not None:
                held = next((h for h in self._catalogue.files() if h.model == served.card.id), None)
            if held is None:
                if served is None:
                    raise NoSuchModelError(f"model '{name}' not found", hint="terazi ps lists what is served")
                raise ForeignModelError(
                    f"'{name}' was not pulled by this service, so it doesn't delete it",
                    hint="take it out of terazi.toml or the command line",
                )
            if held.model:
                await self._shelf.remove_model(held.model)
            self._catalogue.drop(held.name)
            for other in self._catalogue.presets():
                if other.base == held.model:
                    self._catalogue.drop(other.name)
            await asyncio.to_thread(_remove, held.files, self._home)

    # --- the rest

    async def has_blob(self, digest: str) -> bool:
        """As ``Library`` has it."""
        return self._blobs.path(digest) is not None

    async def add_blob(self, digest: str, chunks: AsyncIterable[bytes], length: int | None) -> None:
        """As ``Library`` has it."""
        self._check_room(length or 0)
        await self._blobs.add(digest, chunks, room=self._check_room)

    async def keep(self, model: str, idle_s: float | None) -> None:
        """As ``Library`` has it."""
        await self._shelf.keep_model(model, idle_s)

    def expires_s(self, model: str) -> float | None:
        """As ``Library`` has it."""
        return self._shelf.idle_left_s(model)


def hub_reference(name: str) -> HubReference | None:
    """What *name* means on the hub: ``hf.co/org/repo[:QUANT]`` as Ollama has it, or ``hf:org/repo[:…]``.

    Raises:
        UsageError: it begins like one and is none.
    """
    for host in _HUB_HOSTS:
        if name.lower().startswith(host):
            return parse_reference(PREFIX + name[len(host) :].removesuffix(":latest"))
    return parse_reference(name) if name.startswith(PREFIX) else None


def name_of(reference: HubReference) -> str:
    """What clients call it: the same in whatever way it was pulled."""
    chosen = reference.file or reference.quant
    return f"hf.co/{reference.repository}{f':{chosen}' if chosen else ''}"


def local_path(name: str) -> str | None:
    """The file of this machine that *name* is, if it looks like one; ``:latest`` may be added by clients."""
    text = name.removesuffix(":latest")
    if text.startswith("file://"):
        text = text.removeprefix("file://").removeprefix("localhost")
    elif not (text.startswith(("/", "./", "~")) or text.endswith(".gguf")):
        return None
    return str(Path(text).expanduser().resolve())


def checked_name(name: str) -> str:
    """*name* without ``:latest``, if clients can use it.

    Raises:
        UsageError: they can't.
    """
    bare = name.removesuffix(":latest")
    if not bare or len(bare) > 200 or not bare.isprintable() or set(bare) & set(', "\\'):
        raise UsageError(f"'{name[:200]}' can't be a model's name", hint="use letters, digits and . _ - / :")
    return bare


def _remove(files: Sequence[str], home: Path) -> None:
    """Remove what lies in *home*, and the folders that are empty then."""
    for text in files:
        path = Path(text)
        if not path.is_relative_to(home):
            continue
        path.unlink(missing_ok=True)
        folder = path.parent
        while folder != home and folder.is_relative_to(home):
            notes = folder / INCOMPLETE
            if any(entry != notes for entry in folder.iterdir()):
                break
            shutil.rmtree(folder, ignore_errors=True)
            folder = folder.parent


def _now() -> str:
    return datetime.now(UTC).isoformat()

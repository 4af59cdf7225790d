"""What clients are told about a planned model, and the name that it gets."""

import hashlib
import re
import time
from pathlib import Path

from terazi.gateway.backend import ModelCard
from terazi.models.capabilities import capabilities
from terazi.models.spec import ArrayInfo, ModelSpec
from terazi.placement.plan import Plan

_PART = re.compile(r"-\d{5}-of-\d{5}$")
_UNNAMEABLE = re.compile(r"[,\s-]*[,\s][,\s-]*")


def model_id(spec: ModelSpec) -> str:
    """The name that clients use: the file's, without its ending, its part number and what a name can't hold.

    The engine takes a comma for a list of names, and answers carry the engine's word for the model, so a client
    must be given a name that stays the same on the way.
    """
    return (
        _UNNAMEABLE.sub("-", "".join(c if c.isprintable() else "-" for c in _file_name(spec))).strip("-") or "model"
    )


def _file_name(spec: ModelSpec) -> str:
    return _PART.sub("", Path(spec.files[0].path).stem)


def make_card(
    spec: ModelSpec,
    plan: Plan,
    *,
    alias: str,
    name: str | None = None,
    aliases: tuple[str, ...] = (),
    projector: ModelSpec | None = None,
) -> ModelCard:
    """What clients are told about the model.

    Args:
        spec: of its file.
        plan: as it runs, or would.
        alias: the MODEL as it was typed.
        name: what it is to be called; None is the file's name.
        aliases: further names that were asked for.
        projector: what is loaded beside it for images or sound.
    """
    path = Path(spec.files[0].path)
    name = name or model_id(spec)
    typed = (alias, _file_name(spec), model_id(spec))
    others = dict.fromkeys((*aliases, *(o for o in typed if "/" not in o and o.isprintable())))
    stat = path.stat()
    template = spec.metadata.get("tokenizer.chat_template")
    return ModelCard(
        id=name,
        aliases=tuple(other for other in others if other != name),
        architecture=spec.architecture,
        family=spec.architecture,
        parameter_count=spec.parameter_count,
        quantisation=spec.quantisation,
        size_bytes=spec.file_bytes,
        context_length=plan.workload.context or spec.context_length,
        training_context_length=spec.context_length,
        embedding_length=spec.embedding_length,
        created_s=int(stat.st_mtime),
        modified=time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(stat.st_mtime)),
        digest=hashlib.sha256(f"{name}:{spec.file_bytes}:{stat.st_mtime_ns}".encode()).hexdigest(),
        capabilities=capabilities(
            spec.metadata, spec.architecture, projector=None if projector is None else projector.metadata
        ),
        model_info={key: value for key, value in spec.metadata.items() if not isinstance(value, ArrayInfo | tuple)},
        template=template if isinstance(template, str) else None,
        engine=plan.engine,
    )


def slug(name: str) -> str:
    """*name* as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:80] or "model"

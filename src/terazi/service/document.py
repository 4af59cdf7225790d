"""A weighing as one JSON document, schema ``terazi.weighing/1``."""

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any

from terazi.errors import TeraziError
from terazi.hardware.saved import machine_to_json
from terazi.memory.bill import HOST
from terazi.memory.companion import Companion
from terazi.models.spec import ModelSpec
from terazi.placement.plan import DeviceShare, Refusal, Verdict
from terazi.service.weigh import typed_command
from terazi.service.weighing import Weighing

if TYPE_CHECKING:
    from terazi.service.several import Several

SCHEMA = "terazi.weighing/1"
#: Escapes of JSON that hold a backslash or a surrogate, so that a lone one is told from a pair.
_ESCAPES = re.compile(r"\\\\|\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}|(?P<lone>\\ud[89a-f][0-9a-f]{2})", re.ASCII)


def to_document(weighing: Weighing) -> dict[str, Any]:
    """The document. Bytes, seconds and watts; unknown is null. A refused plan still shows what came closest."""
    outcome = weighing.outcome
    return {
        "schema": SCHEMA,
        "model": _model(weighing.spec),
        "companions": [_companion(c) for c in weighing.companions],
        "machine": machine_to_json(weighing.machine),
        "workload": dataclasses.asdict(weighing.workload),
        "verdict": Verdict.REFUSED if isinstance(outcome, Refusal) else outcome.verdict,
        "plan": {
            "id": None if isinstance(outcome, Refusal) else outcome.id,
            "engine": outcome.bill.engine,
            "settings": dataclasses.asdict(outcome.settings),
            "argv": list(typed_command(weighing)),
            "devices": [_share(share) for share in weighing.shares],
            "reasons": [outcome.reason] if isinstance(outcome, Refusal) else list(outcome.reasons),
            "rejected": [] if isinstance(outcome, Refusal) else [dataclasses.asdict(r) for r in outcome.rejected],
        },
        "bill": {
            "engine": outcome.bill.engine,
            "build": outcome.bill.build,
            "exact": outcome.bill.exact,
            "reasons": list(outcome.bill.reasons),
            "lines": [dataclasses.asdict(line) for line in outcome.bill.lines],
            "page_cache": [dataclasses.asdict(line) for line in outcome.bill.page_cache],
            "loading": [dataclasses.asdict(line) for line in outcome.bill.loading],
            "process": [dataclasses.asdict(line) for line in outcome.bill.process],
            "growth": [dataclasses.asdict(line) for line in outcome.bill.growth],
            "total_bytes": outcome.bill.total_bytes,
        },
        "forecast": None if weighing.forecast is None else dataclasses.asdict(weighing.forecast),
        "power": _power(weighing),
        "refusal": _refusal(outcome) if isinstance(outcome, Refusal) else None,
        "notes": list(weighing.notes),
        "verification": _verification(weighing),
    }


def _power(weighing: Weighing) -> dict[str, Any] | None:
    if weighing.power is None:
        return None
    from terazi.service.power import to_json

    return to_json(weighing.power)


def _verification(weighing: Weighing) -> dict[str, object] | None:
    if weighing.verification is None:
        return None
    from terazi.service.verification import to_json

    return to_json(weighing.verification)


def document_text(weighing: Weighing, **more: object) -> str:
    """The document on one line; *more* keys come after its own (``compare``, ``what_if``)."""
    return _strict(json.dumps({**to_document(weighing), **more}, default=_plain, allow_nan=False))


def several_text(several: "Several") -> str:
    """Several weighings in one budget as one document, schema ``terazi.weighings/1``, on one line."""
    document = {
        "schema": "terazi.weighings/1",
        "verdict": several.verdict,
        "reason": several.reason,
        "order": list(several.order),
        "models": [to_document(weighing) for weighing in several.weighings],
        "left": {
            **{d.id: d.memory_free_bytes for d in several.left.devices},
            HOST: several.left.host.usable_ram_bytes,
        },
    }
    return _strict(json.dumps(document, default=_plain, allow_nan=False))


def error_text(command: str, error: TeraziError) -> str:
    """What stands in the place of a document for a command that can't be weighed, on one line."""
    told = {"message": error.message, "hint": error.hint, "exit_code": error.exit_code}
    return _strict(json.dumps({"schema": "terazi.error/1", "command": command.strip(), "error": told}))


def _strict(text: str) -> str:
    """JSON that every reader takes: a file name that is no UTF-8 arrives as lone surrogates, which most refuse."""
    return _ESCAPES.sub(lambda found: "\\ufffd" if found["lone"] else found[0], text)


def _plain(value: object) -> object:
    if isinstance(value, frozenset):
        return sorted(value)
    raise TypeError(f"not JSON: {type(value).__name__}")


def _share(share: DeviceShare) -> dict[str, Any]:
    row = dataclasses.asdict(share)
    row["layers"] = None if share.layers is None else list(share.layers)
    row["peak_bytes"] = share.peak_bytes
    return row


def _model(spec: ModelSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "format": spec.format,
        "architecture": spec.architecture,
        "quantisation": spec.quantisation,
        "parameter_count": spec.parameter_count,
        "block_count": spec.block_count,
        "context_length": spec.context_length,
        "embedding_length": spec.embedding_length,
        "vocab_size": spec.vocab_size,
        "weights_bytes": spec.weights_bytes,
        "file_bytes": spec.file_bytes,
        "files": [dataclasses.asdict(file) for file in spec.files],
        "origin": spec.origin,
        "reasons": list(spec.reasons),
    }


def _companion(companion: Companion) -> dict[str, Any]:
    """What is loaded beside the model; only another model has a model's figures."""
    told = {"part": companion.part, "flag": companion.flag, "scale": companion.scale}
    facts = _model(companion.spec)
    if not companion.spec.block_count:
        facts = {
            key: facts[key] for key in ("name", "architecture", "weights_bytes", "file_bytes", "files", "origin")
        }
    return {**told, **facts}


def _refusal(refusal: Refusal) -> dict[str, Any]:
    return {
        "reason": refusal.reason,
        "shortfall": [
            {
                "device": s.device,
                "needed_bytes": s.needed_bytes,
                "capacity_bytes": s.capacity_bytes,
                "missing_bytes": s.missing_bytes,
                "why": s.why,
            }
            for s in refusal.shortfall
        ],
        "alternatives": [
            {
                "change": a.change,
                "gives_up": a.gives_up,
                "total_bytes": a.total_bytes,
                "settings": dataclasses.asdict(a.settings),
            }
            for a in refusal.alternatives
        ],
    }

"""Writes docs/reference from the code: the command line, the configuration keys, the JSON documents, a picture.

``python tools/reference.py`` writes, ``--check`` fails if what is there is not what would be written.
"""

import dataclasses
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
#: ``terazi weigh --json``, key by key, two levels deep. A test holds it against what is printed.
WEIGHING = {
    "schema": "`terazi.weighing/1`; keys may be added under it, none is taken away or changes its meaning",
    "model": "what was read of the model",
    "model.name": "its file's own name for it",
    "model.format": "`gguf` or `safetensors`",
    "model.architecture": "as the file says it",
    "model.quantisation": "the type of most of its weights",
    "model.parameter_count": "elements of all tensors",
    "model.block_count": "blocks, draft heads included",
    "model.context_length": "tokens that it was trained for",
    "model.embedding_length": "elements of a token's embedding",
    "model.vocab_size": "tokens of its vocabulary",
    "model.weights_bytes": "bytes of all tensors",
    "model.file_bytes": "bytes of all files",
    "model.files": "`path`, `size_bytes`, `data_offset` and `alignment` of each",
    "model.origin": "what was asked for",
    "model.reasons": "what about the tensors was estimated",
    "companions": "files loaded beside it: `part`, `flag`, `scale`, and keys of `model`",
    "machine": "[Machine](#machine)",
    "workload": "[Workload](#workload)",
    "verdict": "`fits`, `fits-offloaded` (a part in RAM) or `refused`",
    "plan": "what would be started; if refused, what came closest",
    "plan.id": "hash of model, machine and settings; null if refused",
    "plan.engine": "`llama.cpp`, `vllm` or `ollama`",
    "plan.settings": "[LlamaCppSettings](#llamacppsettings) or [VllmSettings](#vllmsettings)",
    "plan.argv": "the command, word by word",
    "plan.devices": "[DeviceShare](#deviceshare) of each device, the host last, with its `peak_bytes`",
    "plan.reasons": "why so, in sentences",
    "plan.rejected": "[Rejected](#rejected) of each layout, setting or engine that was not taken",
    "bill": "[Bill](#bill)",
    "bill.engine": "whose rules it follows",
    "bill.build": "and of which build",
    "bill.exact": "false as soon as a line is an upper bound",
    "bill.reasons": "why it isn't exact",
    "bill.lines": "[BillLine](#billline) of each allocation",
    "bill.page_cache": "file pages that the kernel may drop; in no total",
    "bill.loading": "held only while loading",
    "bill.process": "of the program itself, besides its buffers",
    "bill.growth": "ceilings of what may come later",
    "bill.total_bytes": "the sum of `lines`",
    "forecast": "[Forecast](#forecast), or null",
    "power": "of plans that have a forecast of power: watts, energy, cost; else null",
    "refusal": "null unless refused",
    "refusal.reason": "why, in a sentence",
    "refusal.shortfall": "[Shortfall](#shortfall) of each device that lacks room, with its `missing_bytes`",
    "refusal.alternatives": "[Alternative](#alternative)s, the nearest first",
    "notes": "what a person should know besides",
    "verification": "[Verification](#verification) if `--verify` asked the engine, else null",
}
HEAD = "<!-- written by `make docs` from the code; edit the code instead -->\n"


def command_line() -> str:
    """Every command's own help text."""
    os.environ["COLUMNS"] = "100"  # argparse wraps to the terminal otherwise
    from terazi.cli.main import COMMANDS, command_parser, program_parser

    parts = [HEAD, "# The command line\n", _block(program_parser().format_help())]
    for name in COMMANDS:
        parts += [f"## terazi {name}\n", _block(command_parser(name).format_help())]
    return "\n".join(parts)


def configuration() -> str:
    """Every key of ``terazi.toml`` with its type, default and meaning."""
    from terazi.service.config import Config
    from terazi.service.effects import RULES

    parts = [
        HEAD,
        "# terazi.toml\n",
        "Looked for at `$TERAZI_CONFIG`, `./terazi.toml`, then the user's configuration folder.\n",
    ]
    parts += ["Every key, annotated: [terazi.example.toml](../terazi.example.toml). As JSON schema, for editors:"]
    parts += [
        "[terazi.schema.json](terazi.schema.json). The last column says when a change of the file counts for a"
    ]
    parts += ["service that runs.\n"]
    for heading, model in _tables("", Config, many=False):
        properties, place = model.model_json_schema()["properties"], heading.strip("[]")
        rows = [
            f"| `{name}` | {_kind(properties[name])} | `{_toml(field.default)}` | {field.description or ''} "
            f"| {RULES[f'{place}.{name}'].effect} |"
            for name, field in model.model_fields.items()
            if _table_of(field) is None
        ]
        if rows:
            parts += [
                f"## {heading}\n",
                "| key | type | default | meaning | a change counts |\n|---|---|---|---|---|",
                *rows,
                "",
            ]
    return "\n".join(parts)


def schema() -> str:
    """``terazi.toml`` as a JSON schema."""
    from terazi.service.config import Config

    return json.dumps(Config.model_json_schema(), indent=1) + "\n"


def documents() -> str:
    """The nouns that travel as JSON, field by field."""
    from terazi.hardware.machine import Device, Host, Machine
    from terazi.memory.bill import Bill, BillLine
    from terazi.memory.llama_cpp.settings import LlamaCppSettings
    from terazi.memory.vllm.settings import VllmSettings
    from terazi.memory.workload import Workload
    from terazi.performance.caps import CapAdvice
    from terazi.performance.cost import Comparison, Option, Volume
    from terazi.performance.energy import MonthlyBill, PhasePower, PowerReport, Tariff
    from terazi.performance.forecast import Forecast, Interval
    from terazi.performance.host_power import PsuCheck
    from terazi.placement.plan import Alternative, DeviceShare, Rejected, Shortfall
    from terazi.service.verification import Asked, Verification
    from terazi.telemetry.reconciliation import BufferRow, ProcessMemory, Reconciliation

    parts = [HEAD, "# The JSON documents\n", "Bytes, seconds and watts. Unknown is `null`.\n"]
    parts += ["## The weighing\n", "What `terazi weigh --json` prints, on one line.\n", "| key | says |\n|---|---|"]
    parts += [f"| `{key}` | {meaning} |" for key, meaning in WEIGHING.items()]
    shape = '{"schema": "terazi.error/1", "command": …, "error": {"message": …, "hint": …, "exit_code": …}}'
    parts += [f"\nWith `--commands` a command that can't be weighed gets `{shape}` in its place.\n"]
    nouns = (
        Machine, Host, Device, Workload, LlamaCppSettings, VllmSettings, Bill, BillLine, DeviceShare, Rejected,
        Shortfall,
        Alternative, Forecast, Interval, PowerReport, PhasePower, MonthlyBill, CapAdvice, PsuCheck, Tariff,
        Comparison, Option, Volume, Verification, Asked, Reconciliation, BufferRow, ProcessMemory,
    )  # fmt: skip
    for noun in nouns:
        doc = re.sub(r"``([^`]*)``", r"`\1`", (noun.__doc__ or "").strip())
        parts += [f"## {noun.__name__}\n", "\n".join(line.strip() for line in doc.splitlines()), ""]
        parts += ["| field | type |\n|---|---|"]
        parts += [f"| `{f.name}` | `{_type(f.type)}` |" for f in dataclasses.fields(noun)]
        parts += [""]
    return "\n".join(parts)


def picture() -> str:
    """The README's picture: a 70B model on two unequal cards and RAM, as ``terazi weigh --svg`` draws it."""
    sys.path.insert(0, str(ROOT / "tests"))
    from specs import llama_70b
    from terazi.cli.draw import draw_svg
    from terazi.hardware.presets import parse_machine
    from terazi.hardware.probe import load_catalogue
    from terazi.memory.workload import Workload
    from terazi.service.config import Config
    from terazi.service.power import power_terms, with_power
    from terazi.service.weigh_llama_cpp import weigh_spec

    spec = dataclasses.replace(llama_70b(), name="Llama 3.3 70B, Q4_K")
    machine = parse_machine("RTX 4090 + RTX 3060 12GB + 64GiB ddr5", load_catalogue())
    weighing = weigh_spec(spec, machine, Workload(context=8192), {}, price_per_kwh=None)
    return draw_svg(with_power(weighing, power_terms(Config())))


def _tables(name: str, model: type[BaseModel], *, many: bool) -> Iterator[tuple[str, type[BaseModel]]]:
    yield (f"[[{name}]]" if many else f"[{name}]"), model
    for key, field in model.model_fields.items():
        inner = _table_of(field)
        if inner is not None:
            yield from _tables(f"{name}.{key}".lstrip("."), inner, many=get_origin(field.annotation) is tuple)


def _table_of(field: FieldInfo) -> type[BaseModel] | None:
    """The table that a key holds, once or many times."""
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _kind(schema: dict[str, Any]) -> str:
    """How a value is written, from its JSON schema."""
    if "anyOf" in schema:
        kinds = [_kind(option) for option in schema["anyOf"] if option.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema or "const" in schema:
        return " or ".join(f'"{value}"' for value in schema.get("enum", [schema.get("const")]))
    if schema["type"] == "array":
        return f"list of {_kind(schema['items'])}"
    if schema["type"] == "object":
        return f"table of {_kind(schema['additionalProperties'])}"
    words = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
    return words[schema["type"]]


def _type(annotation: object) -> str:
    text = (
        annotation.__name__
        if isinstance(annotation, type) and not hasattr(annotation, "__args__")
        else str(annotation)
    )
    return re.sub(r"(\w+\.)+", "", text).replace("|", "or")


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        value = list(value)
    return "not set" if value is None else repr(value).replace("'", '"')


def _block(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```\n"


def stories() -> str:
    """The worked stories that the tests check, with their reasons."""
    sys.path.insert(0, str(ROOT / "tests"))
    from stories import page

    return f"{HEAD}\n{page()}"


PAGES = {
    "reference/command-line.md": command_line,
    "reference/configuration.md": configuration,
    "reference/terazi.schema.json": schema,
    "reference/documents.md": documents,
    "reference/device-map.svg": picture,
    "guides/stories.md": stories,
}


def main() -> int:
    """Write, or check."""
    check = "--check" in sys.argv[1:]
    stale = []
    for name, page in PAGES.items():
        text, path = page(), DOCS / name
        if check:
            if not path.exists() or path.read_text() != text:
                stale.append(name)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if stale:
        print(f"stale: docs/{', docs/'.join(stale)}; write them with: make docs", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())

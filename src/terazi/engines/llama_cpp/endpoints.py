"""What llama-server's ``/props``, ``/slots`` and ``/metrics`` answer (build b11434, ``tools/server``), as records.

Bodies are bounded and strange ones are a ``ValueError`` with the reason, never a guess.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

#: A props body carries the chat template, tens of kilobytes for some models; more than this is not one.
MAX_BODY = 4 * 1024 * 1024
MAX_METRIC_LINES = 10_000

#: Terazi's names for llama-server's metrics (``tools/server/server-task.cpp``), each as it is counted there.
METRICS: Mapping[str, str] = {
    "llamacpp:prompt_tokens_total": "prompt_tokens",
    "llamacpp:prompt_tokens_cached_total": "prompt_tokens_cached",
    "llamacpp:prompt_seconds_total": "prompt_s",
    "llamacpp:tokens_predicted_total": "output_tokens",
    "llamacpp:tokens_predicted_seconds_total": "output_s",
    "llamacpp:n_decode_total": "decodes",
    "llamacpp:n_tokens_max": "longest_sequence_tokens",
    "llamacpp:n_busy_slots_per_decode": "busy_slots_per_decode",
    "llamacpp:requests_processing": "requests_running",
    "llamacpp:requests_deferred": "requests_waiting",
    "llamacpp:spec_decode_num_draft_tokens_total": "draft_tokens",
    "llamacpp:spec_decode_num_accepted_tokens_total": "accepted_tokens",
    "llamacpp:spec_decode_num_drafts_total": "drafts",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Props:
    """``GET /props``. ``n_ctx`` is what one slot may grow to; None where the answer lacks the field."""

    n_ctx: int | None
    total_slots: int | None
    model_alias: str | None
    model_path: str | None
    build_info: str | None
    is_sleeping: bool | None
    has_chat_template: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One entry of ``GET /slots``.

    Args:
        task: the request that it works on, or worked on last.
        depth: tokens in its context, generated ones included.
        decoded: tokens that it has generated for this request.
    """

    id: int
    n_ctx: int | None
    is_processing: bool
    task: int | None = None
    depth: int | None = None
    decoded: int | None = None


def parse_props(body: str | bytes) -> Props:
    """Read a props body.

    Raises:
        ValueError: if it is too long, or no JSON object.
    """
    data = _object(_load(body))
    settings = data.get("default_generation_settings")
    n_ctx = settings.get("n_ctx") if isinstance(settings, dict) else None
    return Props(
        n_ctx=_int(n_ctx),
        total_slots=_int(data.get("total_slots")),
        model_alias=_str(data.get("model_alias")),
        model_path=_str(data.get("model_path")),
        build_info=_str(data.get("build_info")),
        is_sleeping=asleep if isinstance(asleep := data.get("is_sleeping"), bool) else None,
        has_chat_template=bool(data.get("chat_template")),
    )


def parse_slots(body: str | bytes) -> tuple[Slot, ...]:
    """Read a slots body.

    Raises:
        ValueError: if it is too long, no JSON list, or an entry has no id.
    """
    data = _load(body)
    entries = [_object(entry) for entry in data] if isinstance(data, list) else None
    if entries is None:
        raise ValueError("slots: not a list")
    found = []
    for entry in entries:
        number = _int(entry.get("id"))
        if number is None:
            raise ValueError("slots: an entry without an id")
        found.append(
            Slot(
                id=number,
                n_ctx=_int(entry.get("n_ctx")),
                is_processing=entry.get("is_processing") is True,
                task=_int(entry.get("id_task")),
                depth=_int(entry.get("n_prompt_tokens")),
                decoded=_decoded(entry.get("next_token")),
            )
        )
    return tuple(found)


def parse_metrics(text: str) -> dict[str, float]:
    """The metrics that Terazi knows, by Terazi's names; others and lines that aren't samples are passed over.

    Raises:
        ValueError: if the text is absurdly long.
    """
    if len(text) > MAX_BODY:
        raise ValueError(f"metrics: {len(text)} characters")
    found: dict[str, float] = {}
    for line in text.split("\n", MAX_METRIC_LINES)[:MAX_METRIC_LINES]:
        name, _, value = line.partition(" ")
        if (known := METRICS.get(name.partition("{")[0])) is not None:
            try:
                found[known] = float(value.split()[0])
            except (ValueError, IndexError):
                continue
    return found


def _decoded(said: object) -> int | None:
    """Of ``next_token``, a list of one object (older builds: the object itself)."""
    one = said[0] if isinstance(said, list) and said else said
    return _int(one.get("n_decoded")) if isinstance(one, dict) else None


def _load(body: str | bytes) -> object:
    if len(body) > MAX_BODY:
        raise ValueError(f"an answer of {len(body)} bytes is too long")
    try:
        data: object = json.loads(body)
    except RecursionError as problem:
        raise ValueError("nested too deeply") from problem
    return data


def _object(value: object) -> dict[str, object]:
    if isinstance(value, dict):
        return value
    raise ValueError("not a JSON object")


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _str(value: object) -> str | None:
    return value if isinstance(value, str) and value else None

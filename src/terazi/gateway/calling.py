"""How a request becomes a ``Call``: the headers that steer it, read in one place for all APIs.

| header | means |
|---|---|
| ``X-Terazi-Resume: off`` | an error is liked better than an answer that was continued after a crash |
| ``X-Terazi-Deadline: SECONDS`` | give it up after so long |
| ``X-Terazi-Priority: -N`` | stand back behind this key's other requests; nobody can step forward |
"""

import itertools
import math
import secrets
from collections.abc import Mapping
from typing import Any, Final

from terazi.gateway.call import Call, Caller
from terazi.gateway.wire.errors import Api, WireError, bad_request

RESUME_HEADER: Final = "x-terazi-resume"
DEADLINE_HEADER: Final = "x-terazi-deadline"
PRIORITY_HEADER: Final = "x-terazi-priority"
_LOWEST: Final = -100
#: Ids are unique over restarts by their first half, and within one service by their second.
_RUN: Final = secrets.token_hex(8)
_numbers = itertools.count(1)


def make_call(
    *,
    api: Api,
    path: str,
    body: bytes,
    fields: Mapping[str, Any],
    model: str,
    stream: bool,
    caller: Caller,
    headers: Mapping[str, str],
    arrived: float,
    content_type: str = "application/json",
) -> Call:
    """The call for one request. *headers*: case-insensitive, or with names in lower case.

    Raises:
        WireError: 400, a header makes no sense.
    """
    resume = headers.get(RESUME_HEADER)
    deadline = headers.get(DEADLINE_HEADER)
    priority = headers.get(PRIORITY_HEADER)
    return Call(
        id=f"req-{_RUN}{next(_numbers):08x}",
        api=api,
        path=path,
        body=body,
        fields=fields,
        model=model,
        stream=stream,
        content_type=content_type,
        caller=caller,
        resume=resume is None or resume.lower() != "off",
        deadline_s=None if deadline is None else _seconds(deadline),
        priority=0 if priority is None else _standing_back(priority),
        arrived=arrived,
        traceparent=headers.get("traceparent"),
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not (math.isfinite(seconds) and seconds > 0):
        raise WireError(bad_request(f"{DEADLINE_HEADER} takes a number of seconds above 0"))
    return seconds


def _standing_back(text: str) -> int:
    try:
        return max(_LOWEST, min(0, int(text)))
    except ValueError as problem:
        raise WireError(bad_request(f"{PRIORITY_HEADER} takes a whole number, 0 or less")) from problem

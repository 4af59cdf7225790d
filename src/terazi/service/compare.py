"""The engines side by side: the same model, machine and workload under each, and which one to take.

In: ``Request``. Out: ``Comparison``.
"""

from dataclasses import dataclass, replace
from typing import Final

from terazi.errors import TeraziError
from terazi.service.request import Request, weigh_request
from terazi.service.side_by_side import Row

ENGINES: Final = ("llama.cpp", "ollama", "vllm")
#: An engine that is less than this much faster is not taken for its speed alone.
_SAME: Final = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A row an engine; ``best`` is the index of the one to take, None if none will do; ``why`` says so."""

    rows: tuple[Row, ...]
    best: int | None
    why: str


def compare(request: Request) -> Comparison:
    """Weigh *request* for every engine. One that can't take the model says why; none of that is an error.

    Raises:
        TeraziError: no engine can even read the model.
    """
    rows = []
    errors: list[TeraziError] = []
    for engine in ENGINES:
        try:
            weighing = weigh_request(replace(request, engine=engine))
        except TeraziError as error:
            errors.append(error)
            rows.append(Row(label=engine, weighing=None, why_not=error.message))
        else:
            rows.append(Row(label=engine, weighing=weighing))
    if len(errors) == len(ENGINES):
        raise errors[0]
    best, why = _best(rows, request.workload.users)
    return Comparison(rows=tuple(rows), best=best, why=why)


def _best(rows: list[Row], users: int) -> tuple[int | None, str]:
    fitting = [i for i, row in enumerate(rows) if row.fits]
    if not fitting:
        return None, "No engine has room for it."
    if len(fitting) == 1:
        only = rows[fitting[0]].label
        others = "; ".join(f"{r.label}: {r.reason.rstrip('.')}" for r in rows if not r.fits)
        return fitting[0], f"{only} is the only one that can serve it here. {others}."
    known = {i: figure.mid for i in fitting if (figure := rows[i].figure("throughput_tok_s")) is not None}
    if not known:
        return fitting[0], f"{rows[fitting[0]].label}: no engine's speed can be forecast here."
    top = max(known.values())
    # the first in the order of ENGINES that is all but as fast
    best = next(i for i in fitting if known.get(i, 0.0) >= top * (1 - _SAME))
    streams = "one stream" if users == 1 else f"{users} streams"
    against = ", ".join(
        f"{rows[i].label} {known[i]:.3g} tok/s" + (" (holds a part in RAM)" if rows[i].verdict != "fits" else "")
        for i in known
        if i != best
    )
    why = f"{rows[best].label}: {known[best]:.3g} tok/s over {streams}"
    return best, f"{why}; {against}." if against else f"{why}."

"""Reads what a client sent into the model of its endpoint."""

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from terazi.gateway.wire.errors import WireError, bad_request

B = TypeVar("B", bound=BaseModel)


def read_body(kind: type[B], raw: bytes) -> B:
    """*raw* as a *kind*.

    Raises:
        WireError: 400 with the first thing that is wrong.
    """
    try:
        return kind.model_validate_json(raw)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise WireError(bad_request(f"{where}: {first['msg']}" if where else first["msg"])) from problem

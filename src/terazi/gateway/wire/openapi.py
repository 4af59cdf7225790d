"""The OpenAPI document of the gateway, made of the table of its endpoints and the models of their bodies."""

import re
from collections.abc import Iterable
from typing import Final

from pydantic.json_schema import models_json_schema

from terazi.gateway.wire.errors import Api
from terazi.gateway.wire.operations import JSON, OPERATIONS, Operation

_PARAMETER: Final = re.compile(r"\{(\w+)(?::[^}]*)?\}")
_REF: Final = "#/components/schemas/{model}"
_TITLES: Final = {
    Api.OPENAI: "OpenAI",
    Api.ANTHROPIC: "Anthropic",
    Api.OLLAMA: "Ollama",
    Api.OWN: "Terazi",
}


def document(version: str, operations: Iterable[Operation] = OPERATIONS) -> dict[str, object]:
    """The document, OpenAPI 3.1; *version* is Terazi's."""
    known = tuple(operations)
    bodies = sorted({body for one in known for body in one.body.values()}, key=lambda body: body.__name__)
    references, definitions = models_json_schema([(body, "validation") for body in bodies], ref_template=_REF)
    paths: dict[str, dict[str, object]] = {}
    for one in known:
        shapes = {kind: references[body, "validation"] for kind, body in one.body.items()}
        paths.setdefault(_PARAMETER.sub(r"{\1}", one.path), {})[one.method.lower()] = _operation(one, shapes)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Terazi",
            "version": version,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": {**definitions.get("$defs", {}), **{_error_name(api): _error(api) for api in Api}},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{"bearer": []}, {"key": []}, {}],
        "tags": [{"name": title} for title in _TITLES.values()],
    }


def operation_id(one: Operation) -> str:
    """A name for it that no other has."""
    words = re.findall(r"\w+", _PARAMETER.sub(r"by \1", one.path)) or ["root"]
    return one.method.lower() + "".join(word[:1].upper() + word[1:] for word in words)


def _operation(one: Operation, shapes: dict[str, dict[str, str]]) -> dict[str, object]:
    good: dict[str, object] = {one.gives: {}, **({one.streams: {}} if one.streams else {})}
    error = {
        "description": "an error",
        "content": {JSON: {"schema": {"$ref": _REF.format(model=_error_name(one.api))}}},
    }
    if one.key == "health":
        error = {"description": "no model answers", "content": {JSON: {}}}
    shaped: dict[str, object] = {
        "operationId": operation_id(one),
        "tags": [_TITLES[one.api]],
        "summary": one.summary,
        "responses": {"200": {"description": "the answer", "content": good}, "default": error},
    }
    parameters: list[dict[str, object]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PARAMETER.findall(one.path)
    ]
    parameters += [
        {"name": name, "in": "query", "description": what, "schema": {"type": "string"}}
        for name, what in one.query.items()
    ]
    if parameters:
        shaped["parameters"] = parameters
    if shapes:
        content = {kind: {"schema": schema} for kind, schema in shapes.items()}
        shaped["requestBody"] = {"required": True, "content": content}
    if one.public:
        shaped["security"] = [{}]
    return shaped


def _error_name(api: Api) -> str:
    return f"{_TITLES[api]}Error"


def _error(api: Api) -> dict[str, object]:
    text = {"type": "string"}
    if api is Api.OPENAI:
        inner = {"message": text, "type": text, "code": {"type": ["string", "integer", "null"]}}
        error: dict[str, object] = {"type": "object", "properties": inner, "required": ["message", "type"]}
        return {"type": "object", "properties": {"error": error}, "required": ["error"]}
    if api is Api.ANTHROPIC:
        error = {"type": "object", "properties": {"type": text, "message": text}, "required": ["type", "message"]}
        return {
            "type": "object",
            "properties": {"type": {"const": "error"}, "error": error},
            "required": ["type", "error"],
        }
    return {"type": "object", "properties": {"error": text}, "required": ["error"]}

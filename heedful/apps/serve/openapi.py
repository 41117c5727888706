"""The OpenAPI description of a server, built from its endpoints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pydantic

import heedful
from heedful.apps.serve.exchange import Endpoint

_NO_KEY = "There is no key, or no known one"
_STATUSES = {
    "400": "The request is wrong",
    "413": "The request is too large",
    "429": "There is too much to do; Retry-After says when to ask again",
    "503": "It took too long, or the server stops",
}


def describe(endpoints: Iterable[Endpoint[Any]], *, needs_key: bool) -> dict[str, Any]:
    """Return the description as JSON data (OpenAPI 3.1).

    Args:
        endpoints: endpoints of the server.
        needs_key: true if clients need a key.
    """
    schemas: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        operation: dict[str, Any] = {
            "summary": endpoint.summary,
            "operationId": f"{endpoint.method} {endpoint.path}",
            "responses": _responses(endpoint, schemas),
        }
        if endpoint.body.model_fields:
            schema = _reference(endpoint.body, schemas)
            operation["requestBody"] = {
                "required": True,
                "content": {endpoint.body_type: {"schema": schema}},
            }
        if "{name}" in endpoint.path:
            operation["parameters"] = [
                {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
            ]
        if needs_key and not endpoint.is_open:
            operation["security"] = [{"key": []}]
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    components: dict[str, Any] = {"schemas": dict(sorted(schemas.items()))}
    if needs_key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Heedful", "version": heedful.__version__},
        "paths": paths,
        "components": components,
    }


def _responses(endpoint: Endpoint[Any], schemas: dict[str, Any]) -> dict[str, Any]:
    kind = endpoint.result
    schema = _reference(kind, schemas) if kind is not None else {"type": "object"}
    media = endpoint.media_type
    content: dict[str, Any] = {media: {"schema": schema}}
    if "stream" in endpoint.body.model_fields:
        # No schema, since tools disagree on whether it describes one event or the whole stream.
        content["text/event-stream"] = {}
    responses: dict[str, Any] = {"200": {"description": "The answer", "content": content}}
    wrong = {"application/json": {"schema": {"type": "object"}}}
    statuses = _STATUSES if endpoint.body.model_fields else {}
    if "{name}" in endpoint.path or "model" in endpoint.body.model_fields:
        statuses = statuses | {"404": "There is nothing of that name"}
    if not endpoint.is_open:
        statuses = statuses | {str(endpoint.no_key): _NO_KEY}
    return responses | {
        status: {"description": words, "content": wrong} for status, words in statuses.items()
    }


def _reference(model: type[pydantic.BaseModel], schemas: dict[str, Any]) -> dict[str, str]:
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= schema.pop("$defs", {})
    schemas[model.__name__] = schema
    return {"$ref": f"#/components/schemas/{model.__name__}"}

"""The service's OpenAPI 3.1 document: the schema of every request and reply, made from the messages themselves."""

from importlib.metadata import version
from typing import Any

import msgspec

from aaml.serve.messages import (
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderFilterResult,
    HostPriority,
    Problem,
    ScoreReply,
    ScoreRequest,
)

_BODIES = (
    ExtenderArgs, ExtenderFilterResult, list[HostPriority], ExtenderBindingArgs, ExtenderBindingResult, ScoreRequest,
    ScoreReply, Problem,
)  # fmt: skip
_PROBLEMS = {
    "400": "No such JSON",
    "401": "No valid token or certificate",
    "413": "Too large",
    "422": "No such object or field",
    "500": "The policy failed",
    "503": "Too many at once",
}


def document(*, binds: bool = False) -> dict[str, Any]:
    """Return the document that `/openapi.json` serves; without `binds` there is no `/bind`."""
    made, components = msgspec.json.schema_components(_BODIES, ref_template="#/components/schemas/{name}")
    args, passed, priorities, binding, bound, request, scores, problem = (
        {"application/json": {"schema": schema}} for schema in made
    )

    def post(summary: str, body: Any, reply: Any) -> dict[str, Any]:
        responses: dict[str, Any] = {"200": {"description": "Done", "content": reply}}
        responses |= {code: {"description": text, "content": problem} for code, text in _PROBLEMS.items()}
        return {
            "post": {"summary": summary, "requestBody": {"required": True, "content": body}, "responses": responses}
        }

    return {
        "openapi": "3.1.0",
        "info": {"title": "AAML scheduling service", "version": version("aaml")},
        "paths": {
            "/filter": post("Extender: which nodes pass the filters", args, passed),
            "/prioritize": post("Extender: score the nodes, 0 to 10", args, priorities),
            **({"/bind": post("Extender: bind the pod", binding, bound)} if binds else {}),
            "/score": post("Score posted nodes, 0 to 100", request, scores),
            "/healthz": _get("The process answers"),
            "/readyz": _get("Every endpoint can answer"),
            "/metrics": _get("Prometheus metrics", _401="No valid token or certificate"),
            "/openapi.json": _get("This document", _401="No valid token or certificate"),
        },
        "components": {"schemas": components},
    }


def _get(summary: str, **others: str) -> dict[str, Any]:
    responses = {"200": {"description": "Done"}} | {code[1:]: {"description": text} for code, text in others.items()}
    return {"get": {"summary": summary, "responses": responses}}

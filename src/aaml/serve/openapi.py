"""The service's OpenAPI 3.1 document, the documented schema of every request and reply."""

from importlib.metadata import version
from typing import Any

_POD: dict[str, Any] = {
    "type": "object",
    "description": "A v1.Pod; fields that scheduling does not read are ignored.",
    "required": ["metadata", "spec"],
    "properties": {
        "metadata": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string"}, "namespace": {"type": "string"}, "uid": {"type": "string"}},
        },
        "spec": {"type": "object"},
    },
}
_NODE: dict[str, Any] = {
    "type": "object",
    "description": "A v1.Node; allocatable amounts are Kubernetes quantities.",
    "required": ["metadata"],
    "properties": {
        "metadata": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
        "status": {
            "type": "object",
            "properties": {"allocatable": {"type": "object", "additionalProperties": {"type": "string"}}},
        },
    },
}
_EXTENDER_ARGS: dict[str, Any] = {
    "type": "object",
    "required": ["pod"],
    "description": "extender/v1 ExtenderArgs, names in any case: nodenames (nodeCacheCapable: true) or nodes.",
    "properties": {
        "pod": _POD,
        "nodenames": {"type": ["array", "null"], "items": {"type": "string"}},
        "nodes": {
            "type": ["object", "null"],
            "properties": {"items": {"type": ["array", "null"], "items": _NODE}},
        },
    },
}
_FILTER_RESULT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "nodenames": {"type": "array", "items": {"type": "string"}},
        "nodes": {"type": "object"},
        "failedNodes": {"type": "object", "additionalProperties": {"type": "string"}},
        "failedAndUnresolvableNodes": {"type": "object", "additionalProperties": {"type": "string"}},
        "error": {"type": "string"},
    },
}
_PRIORITIES: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["host", "score"],
        "properties": {"host": {"type": "string"}, "score": {"type": "integer", "minimum": 0, "maximum": 10}},
    },
}
_BINDING: dict[str, Any] = {
    "type": "object",
    "required": ["podName", "podNamespace", "podUID", "node"],
    "properties": {name: {"type": "string"} for name in ("podName", "podNamespace", "podUID", "node")},
}
_SCORE_REQUEST: dict[str, Any] = {
    "type": "object",
    "required": ["pod", "nodes"],
    "properties": {
        "pod": _POD,
        "nodes": {"type": "array", "items": _NODE, "description": "The feasible nodes, with different names."},
        "pods": {
            "type": "array",
            "items": _POD,
            "description": "Pods bound to these nodes (spec.nodeName); without them the nodes count as empty.",
        },
    },
}
_SCORE_REPLY: dict[str, Any] = {
    "type": "object",
    "required": ["scores"],
    "properties": {
        "scores": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 100}}
    },
}
_PROBLEM: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string", "description": "One line: the field, its value and what is accepted."}},
}


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _post(summary: str, body: dict[str, Any], reply: dict[str, Any]) -> dict[str, Any]:
    problems = {"400": "No such JSON", "401": "No valid token", "413": "Too large", "422": "No such object or field"}
    responses: dict[str, Any] = {"200": {"description": "Done", "content": _content(reply)}}
    responses |= {code: {"description": text, "content": _content(_PROBLEM)} for code, text in problems.items()}
    request = {"required": True, "content": _content(body)}
    return {"post": {"summary": summary, "requestBody": request, "responses": responses}}


def _get(summary: str, **others: str) -> dict[str, Any]:
    responses = {"200": {"description": "Done"}} | {code[1:]: {"description": text} for code, text in others.items()}
    return {"get": {"summary": summary, "responses": responses}}


def document() -> dict[str, Any]:
    """Return the document that `/openapi.json` serves."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "AAML scheduling service", "version": version("aaml")},
        "paths": {
            "/filter": _post("Extender: which nodes pass the filters", _EXTENDER_ARGS, _FILTER_RESULT),
            "/prioritize": _post("Extender: score the nodes, 0 to 10", _EXTENDER_ARGS, _PRIORITIES),
            "/bind": _post("Extender: bind the pod", _BINDING, {"type": "object"}),
            "/score": _post("Score posted nodes, 0 to 100", _SCORE_REQUEST, _SCORE_REPLY),
            "/healthz": _get("The process answers"),
            "/readyz": _get("Every endpoint can answer", _503="Not yet"),
            "/metrics": _get("Prometheus metrics", _401="No valid token"),
            "/openapi.json": _get("This document", _401="No valid token"),
        },
    }

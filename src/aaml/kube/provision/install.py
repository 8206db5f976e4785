"""What a program of other kinds of objects finds on a cluster: its kinds, and its own objects."""

import json
from typing import Any

from aaml.kube.transport import CONFLICT, ApiError, Transport

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_NOT_YET = (404, 429, 503)  # a kind of objects that the API server has just been told of


def create_or_replace(api: Transport, path: str, body: dict[str, Any]) -> None:
    """Create an object, or replace the one that is there."""
    try:
        api.request("POST", path, body)
    except ApiError as error:
        if error.status != CONFLICT:
            raise
        place = f"{path}/{body['metadata']['name']}"
        version = json.loads(api.request("GET", place))["metadata"]["resourceVersion"]
        api.request("PUT", place, body | {"metadata": body["metadata"] | {"resourceVersion": version}})


def served(api: Transport, path: str) -> bool:
    """Say whether the API server serves a kind of objects."""
    try:
        api.request("GET", path)
    except ApiError as error:
        if error.status not in _NOT_YET:
            raise
        return False
    return True

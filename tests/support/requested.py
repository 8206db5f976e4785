"""Which rights a program uses: the requests that reach an API server, in the words of Kubernetes' authorization."""

from collections import deque
from typing import Any

from support.scripted_api import HANG, ScriptedApi

Used = tuple[str, str, str]
"""A verb, a group and a resource with its subresource, as a rule of a role names them."""
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}
_FREE = "selfsubjectaccessreviews"  # every account may ask what it may


class _Otherwise(dict[Any, Any]):
    """What was scripted, and one answer to everything else."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self._answer = answer

    def get(self, key: Any, default: Any = None) -> Any:
        del default
        return super().get(key) or deque([self._answer])


class WillingApi(ScriptedApi):
    """An API server that says yes: what is not scripted is an empty list, a silent watch, or done."""

    def __init__(self) -> None:
        super().__init__()
        self._watches = _Otherwise([HANG])
        done = {"metadata": {"name": "x", "resourceVersion": "9"}, "items": [], "status": {"allowed": True}}
        self._others = _Otherwise((200, done))

    def used(self) -> set[Used]:
        """Return the rights that the requests so far need."""
        with self._lock:
            return {used(method, path, query) for method, path, query, _ in self.requests if _FREE not in path}


def used(method: str, path: str, query: dict[str, str]) -> Used:
    """Return the right that a request needs.

    By https://kubernetes.io/docs/reference/access-authn-authz/authorization/#determine-the-request-verb.
    """
    parts = path.strip("/").split("/")
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    named = len(rest) > 1
    resource = "/".join((rest[0], *rest[2:]))
    if method == "GET":
        return "watch" if "watch" in query else "get" if named else "list", group, resource
    if method == "DELETE":
        return "delete" if named else "deletecollection", group, resource
    return _VERBS[method], group, resource

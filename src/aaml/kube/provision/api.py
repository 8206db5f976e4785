"""Raw requests for provisioning: the official client's authentication and connections, JSON bytes in and out."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from aaml.errors import UserError

REQUESTS_IN_FLIGHT = 16
_TIMEOUT_S = 30.0
_STUMBLES = (
    TypeError,
    AttributeError,
    KeyError,
    ValueError,
)  # of the client's loader, over a file that is something else
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


class ApiError(Exception):
    """The API server refused a request: HTTP status and the message of its `Status` object."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class Api:
    """A connection pool to one API server. Threads may share it."""

    def __init__(
        self,
        kubeconfig: Path | str | None = None,
        *,
        server: str | None = None,
        context: str | None = None,
        connections: int = REQUESTS_IN_FLIGHT,
    ) -> None:
        """Connect to `server` (plain, for instance http://kwok-cluster:8080), else by a kubeconfig.

        Without either, `$KUBECONFIG`, `~/.kube/config` and a pod's service account are tried, in this order. Raises
        `UserError` when there is no configuration; nothing is sent yet.
        """
        from kubernetes import client, config  # most of a second: only when a server is to be asked

        settings = client.Configuration()
        if server is not None:
            settings.host = server.rstrip("/")
        elif kubeconfig is not None and not Path(kubeconfig).is_file():
            raise UserError(f"kubeconfig: {str(kubeconfig)!r} does not exist")
        else:
            try:
                _load(config, settings, kubeconfig, context)
            except (config.ConfigException, yaml.YAMLError, *_STUMBLES) as error:
                where = f"kubeconfig {str(kubeconfig)!r}" if kubeconfig else "kubeconfig"
                message = " ".join(str(error).split())
                raise UserError(
                    f"{where}: no usable cluster configuration ({message}); try `aaml cluster up`"
                ) from error
        if urlsplit(settings.host).hostname in _LOOPBACK:
            settings.proxy = None  # a company's proxy, taken from the environment, reaches no server of this machine
        settings.connection_pool_maxsize = connections
        self.server = str(settings.host)
        self._settings: Any = settings
        self._pool = client.ApiClient(settings).rest_client.pool_manager

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        """Send one request, read its whole answer (an unread body costs a new connection) and return it.

        Raises `ApiError` on a status of 400 and more, `UserError` when the server cannot be reached.
        """
        from urllib3.exceptions import HTTPError

        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        for setting in self._settings.auth_settings().values():
            headers[str(setting["key"])] = str(setting["value"])
        content = None if body is None else json.dumps(body).encode()
        try:
            answer = self._pool.request(
                method, self.server + path, body=content, headers=headers, timeout=_TIMEOUT_S, retries=False
            )
        except HTTPError as error:
            raise UserError(f"no Kubernetes API answers at {self.server} ({type(error).__name__}: {error})") from error
        if answer.status >= 400:
            raise ApiError(answer.status, _message(answer.data))
        return bytes(answer.data)

    def ready(self) -> bool:
        """Say whether the API server answers that it is ready to serve."""
        try:
            return self.send("GET", "/readyz") == b"ok"
        except (ApiError, UserError):
            return False


def _load(config: Any, settings: Any, kubeconfig: Path | str | None, context: str | None) -> None:
    try:
        file = None if kubeconfig is None else str(kubeconfig)
        config.load_kube_config(config_file=file, context=context, client_configuration=settings)
    except config.ConfigException:
        if kubeconfig is not None or context is not None:
            raise
        config.load_incluster_config(client_configuration=settings)


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()[:200]

"""Who may ask a server of ours: programs, and its own page, but no page of another site that a browser happens to show.

A browser sends requests for any page that it shows, to this machine too. It says so in headers that a page cannot
forge: `Sec-Fetch-Site`, and `Origin` where it is older or writes. A name that its owner lets point to this machine (DNS
rebinding) stands in `Host`.
"""

from collections.abc import Collection, Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_OWN = frozenset({"", "none", "same-origin"})  # no browser, typed by a person, our own page


def names_of(host: str) -> frozenset[str] | None:
    """Return the names by which a server that listens on `host` may be called; None, any, beyond loopback."""
    try:
        loopback = host in LOOPBACK or ip_address(host).is_loopback
    except ValueError:
        loopback = False
    return LOOPBACK | {host} if loopback else None


class Gate:
    """Lets no request through that another site's page makes, nor one for another host's name: 403.

    `hosts` are the names by which the server may be called, None for any. `pages` are the paths to which a link of
    another site may lead, as long as the page opens by itself and in no frame.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None = None, pages: Collection[str] = ()) -> None:
        self._app, self._hosts, self._pages = app, hosts, frozenset(pages)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":  # the server's own start and end: there are no websockets
            await self._app(scope, receive, send)
            return
        wrong = self._wrong(scope, Headers(scope=scope))
        await (JSONResponse({"error": wrong}, 403) if wrong else self._app)(scope, receive, send)

    def _wrong(self, scope: Scope, headers: Headers) -> str:
        host = headers.get("host", "")
        if self._hosts is not None and _name(host) not in self._hosts:
            return f"host: {host[:100]!r} is not accepted; expected one of {', '.join(sorted(self._hosts))}"
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return f"origin: {origin[:100]!r} is not accepted; expected no other site than this one"
        site = headers.get("sec-fetch-site", "")
        if site in _OWN or self._leads_here(scope, headers):
            return ""
        return f"sec-fetch-site: {site[:100]!r} is not accepted; expected no other site than this one"

    def _leads_here(self, scope: Scope, headers: Headers) -> bool:
        """Whether a person followed a link to a page of ours."""
        way = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
        return scope["method"] == "GET" and scope["path"] in self._pages and way == ("navigate", "document")


def gated(
    routes: Sequence[BaseRoute],
    hosts: Collection[str] | None = None,
    pages: Collection[str] = (),
    within: Sequence[Middleware] = (),
) -> Starlette:
    """Return the application of these routes behind a `Gate`; every other path is a 404, and none leads elsewhere."""
    app = Starlette(routes=routes, middleware=[Middleware(Gate, hosts=hosts, pages=pages), *within])
    app.router.redirect_slashes = False  # the address that it would lead to is made of what the client says
    return app


def _name(host: str) -> str:
    """Return the name in a Host header without its port; "" for none that can be read."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""

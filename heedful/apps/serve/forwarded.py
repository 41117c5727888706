"""Headers in which a proxy says for whom it asks: believed of proxies that are named, only."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class ForwardedHeaders:
    """An ASGI layer that removes the headers `X-Forwarded-*` of all clients but proxies.

    Args:
        app: application behind it.
        proxies: addresses and networks of proxies; * for any.
    """

    def __init__(self, app: ASGIApp, proxies: Collection[str]) -> None:
        self.app = app
        self.of_proxies = ProxyHeadersMiddleware(app, list(proxies))  # type: ignore[arg-type]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        client = (scope.get("client") or ("",))[0]
        if scope["type"] == "http" and client not in self.of_proxies.trusted_hosts:
            own = [pair for pair in scope["headers"] if not pair[0].startswith(b"x-forwarded-")]
            await self.app({**scope, "headers": own}, receive, send)
        else:
            await self.of_proxies(scope, receive, send)  # type: ignore[arg-type]

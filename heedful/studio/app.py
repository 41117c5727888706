"""The studio as an ASGI application: the shell, its scripts, and the calls of every page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from anyio import to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import heedful
from heedful.studio.answers import answering, broken, json_response, missing, new_turn
from heedful.studio.guard import Guard
from heedful.studio.registry import PAGES

if TYPE_CHECKING:
    from starlette.types import Scope

    from heedful.studio.workspace import Workspace

STATIC = Path(__file__).parent / "static"

FIRST_PAGE = 1.0
"""Seconds that the first page has for itself after the server is up."""


class _Scripts(StaticFiles):
    """Files that a browser asks for again whenever it shows them, so that an update is seen."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = "no-cache"
        return response


def build_app(workspace: Workspace, host: str = "127.0.0.1") -> Starlette:
    """The application.

    Args:
        workspace: the models and runs that pages may look at.
        host: the address it will be served on, for the guard.
    """

    async def shell(request: Request) -> Response:
        return _shell(200)

    async def nothing(request: Request, error: Exception) -> Response:
        if request.method == "GET" and not request.url.path.startswith(("/api/", "/static/")):
            return _shell(404)  # which says so, and shows the way
        return await missing(request, error)

    async def facts(request: Request) -> Response:
        places = [await to_thread.run_sync(place.plain) for place in workspace.places.values()]
        return json_response(
            {
                "version": heedful.__version__,
                "pages": [page.plain() for page in PAGES],
                "places": places,
            }
        )

    routes = [
        Route("/", shell),
        Route("/api/studio", facts),
        Mount("/static", _Scripts(directory=STATIC)),
    ]
    turn = new_turn()
    limits: dict[str, int] = {}
    for page in PAGES:
        routes.append(Route(f"/{page.name}", shell))
        for name, call in page.calls.items():
            endpoint = answering(call, workspace, turn)
            path = f"/api/{page.name}/{name}"
            routes.append(Route(path, endpoint, methods=["POST"]))
            if call.limit is not None:
                limits[path] = call.limit
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, host=host, limits=limits)],
        exception_handlers={HTTPException: nothing, Exception: broken},
        lifespan=_warmed,
    )


def _shell(status: int) -> Response:
    headers = {"cache-control": "no-cache"}
    return FileResponse(STATIC / "index.html", status_code=status, headers=headers)


@asynccontextmanager
async def _warmed(app: Starlette) -> AsyncIterator[None]:
    """Load torch while the first page is read: once it is there, for loading would delay it."""
    import threading

    loading = threading.Timer(FIRST_PAGE, _load_torch)
    loading.daemon = True
    loading.start()
    yield
    loading.cancel()


def _load_torch() -> None:
    import heedful.nn.attend  # noqa: F401

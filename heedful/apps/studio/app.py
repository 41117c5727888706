"""The studio as an ASGI application, and its server on this machine.

A call takes and returns JSON; an error has the keys what, where and remedy.
"""

from __future__ import annotations

import socket
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from anyio import to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import heedful
from heedful.apps.studio.course import read_course
from heedful.apps.studio.dropped_models import BeginRequest, DroppedModels, EndRequest
from heedful.apps.studio.guard import Guard, plain_error
from heedful.apps.studio.pages import PAGES
from heedful.apps.web import HUNG_UP, json_object, json_response, media_type
from heedful.errors import RunError, UserError

if TYPE_CHECKING:
    from starlette.types import Scope

    from heedful.apps.studio.page import Call
    from heedful.apps.studio.workspace import Workspace


STATIC = Path(__file__).parent / "static"

Result = TypeVar("Result")

AT_ONCE = 2
"""Calls that are computed at a time; torch uses all cores for each."""

FIRST_PAGE = 1.0
"""Seconds after the start before PyTorch is loaded, which would delay the first page."""


KEEP = "public, max-age=31536000, immutable"


class _Scripts(StaticFiles):
    """Static files, which a browser checks for updates at each use.

    A vendored file has its version in its name, so a browser caches it.
    """

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        kept = path.startswith("vendor/") and path.endswith(".js") and response.status_code < 400
        response.headers["cache-control"] = KEEP if kept else "no-cache"
        return response


def build_app(workspace: Workspace, host: str = "127.0.0.1", token: str | None = None) -> Starlette:
    """Build the application.

    Args:
        workspace: models and runs for the pages.
        host: address of the server, for the guard.
        token: key that requests must have; see `Guard`.
    """

    async def shell(request: Request) -> Response:
        return _shell(200)

    async def not_found(request: Request, error: Exception) -> Response:
        if request.method == "GET" and not request.url.path.startswith(("/api/", "/static/")):
            return _shell(404)  # the shell says that there is no such page, and links to the start
        problem = UserError(
            "There is no such page", where=request.url.path[:200], remedy="Go back to the start: /"
        )
        return error_response(problem, getattr(error, "status_code", 404))

    async def studio(request: Request) -> Response:
        places = [await to_thread.run_sync(place.plain) for place in workspace.places.values()]
        return _answer(
            {
                "version": heedful.__version__,
                "pages": [page.plain() for page in PAGES],
                "course": read_course().plain(),
                "places": places,
            }
        )

    routes = [
        Route("/", shell),
        Route("/api/studio", studio),
        Mount("/static", _Scripts(directory=STATIC)),
    ]
    turns = anyio.Semaphore(AT_ONCE)
    drops = DroppedModels(workspace)
    routes += _drop_routes(drops, turns)
    limits = {DROP_FILE: drops.most}
    for page in PAGES:
        routes.append(Route(f"/{page.name}", shell))
        for name, call in page.calls.items():
            endpoint = _endpoint(call, workspace, turns)
            path = f"/api/{page.name}/{name}"
            routes.append(Route(path, endpoint, methods=["POST"]))
            if call.limit is not None:
                limits[path] = call.limit
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, host=host, limits=limits, token=token)],
        exception_handlers={HTTPException: not_found, Exception: _internal_error},
        lifespan=partial(_lifespan, workspace, drops),
    )


def _shell(status: int) -> Response:
    headers = {"cache-control": "no-cache"}
    return FileResponse(STATIC / "index.html", status_code=status, headers=headers)


DROP_FILE = "/api/dropped/file"


def _drop_routes(drops: DroppedModels, turns: anyio.Semaphore) -> list[Route]:
    """Return the routes that receive a dropped model: begin, each file, end."""

    @_answering_errors
    async def begin(request: Request) -> Response:
        asked = BeginRequest.parse(await _body(request), where="the page's request")
        drop, files, left_out = await to_thread.run_sync(drops.begin, asked)
        return _answer({"drop": drop, "files": files, "left_out": left_out})

    @_answering_errors
    async def file(request: Request) -> Response:
        _check_type(request, "application/octet-stream", "no file")
        drop, name = (request.query_params.get(each, "") for each in ("drop", "name"))
        number = int(drop) if drop.isascii() and drop.isdecimal() and len(drop) < 10 else -1
        await drops.receive(number, name, request.stream())
        return _answer({})

    @_answering_errors
    async def end(request: Request) -> Response:
        asked = EndRequest.parse(await _body(request), where="the page's request")
        async with turns:
            place = await to_thread.run_sync(_after_loading, drops.end, asked.drop)
        return _answer(await to_thread.run_sync(place.plain))

    return [
        Route("/api/dropped/begin", begin, methods=["POST"]),
        Route(DROP_FILE, file, methods=["POST"]),
        Route("/api/dropped/end", end, methods=["POST"]),
    ]


def _answering_errors(
    endpoint: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    @wraps(endpoint)
    async def answered(request: Request) -> Response:
        try:
            return await endpoint(request)
        except UserError as error:
            return error_response(error)

    return answered


@asynccontextmanager
async def _lifespan(
    workspace: Workspace, drops: DroppedModels, app: Starlette
) -> AsyncIterator[None]:
    """Load the library once the first page has been served.

    At the end a running training is stopped, and dropped models are removed.
    """
    loading = threading.Timer(FIRST_PAGE, load_library)
    loading.daemon = True
    loading.start()
    yield
    loading.cancel()
    await to_thread.run_sync(workspace.training.stop)
    drops.close()


_LOADING = threading.Lock()


def load_library() -> None:
    """Load PyTorch and the modules that pages need, once.

    Threads that import parts of a package at the same time can see modules of each other half
    loaded, so every call waits here for the first one.
    """
    with _LOADING:
        import heedful.inspect  # noqa: F401


def _after_loading(work: Callable[..., Result], *arguments: Any) -> Result:
    load_library()
    return work(*arguments)


def _answer(content: Mapping[str, Any], status: int = 200) -> Response:
    return json_response(content, status, ascii_only=True)


def error_response(error: UserError, status: int | None = None) -> Response:
    """Return an error of the user as a response."""
    if status is None:
        status = 500 if isinstance(error, RunError) else 400
    return _answer(plain_error(error), status)


def _endpoint(
    call: Call, workspace: Workspace, turns: anyio.Semaphore
) -> Callable[[Request], Awaitable[Response]]:
    @_answering_errors
    async def endpoint(request: Request) -> Response:
        settings = call.request.parse(await _body(request), where="the page's request")
        async with turns:
            # A slider that moves on cancels its last call.
            if await request.is_disconnected():
                return Response(status_code=HUNG_UP)
            answer = await to_thread.run_sync(_after_loading, call.answer, settings, workspace)
        return _answer(answer)

    return endpoint


async def _internal_error(request: Request, error: Exception) -> Response:
    """Report a bug of ours; the traceback goes to the terminal."""
    traceback.print_exception(error, file=sys.stderr)
    return error_response(
        RunError(
            f"The studio failed: {type(error).__name__}: {error}",
            where=request.url.path,
            remedy="Please report it, with the traceback in the terminal",
        )
    )


async def _body(request: Request) -> Mapping[str, Any]:
    _check_type(request, "application/json", "no JSON")
    try:
        return json_object(await request.body())
    except ValueError as error:
        raise UserError(f"The request is {error}", where="the request's body") from None


def _check_type(request: Request, wanted: str, otherwise: str) -> None:
    """Refuse other media types than the wanted one, which a form of another site cannot send."""
    kind = media_type(request)
    if kind != wanted:
        raise UserError(f"The request is {otherwise}", where=f"Content-Type: {kind[:80]}")


def serve(
    workspace: Workspace,
    host: str,
    listening: socket.socket,
    ready: Callable[[], None] | None = None,
    token: str | None = None,
) -> None:
    """Serve until a signal says to stop.

    Args:
        workspace: models and runs for the pages.
        host: address to listen on.
        listening: listening socket, from `heedful.apps.sockets.listen`.
        ready: function called as soon as requests are answered.
        token: key that requests must have; see `Guard`.
    """
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            if ready is not None:
                ready()

    config = uvicorn.Config(
        build_app(workspace, host, token),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
        ws="none",
    )
    Server(config).run(sockets=[listening])

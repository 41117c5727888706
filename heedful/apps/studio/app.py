"""The studio as an ASGI application, and its server on this machine.

A call takes and returns JSON; an error has the keys what, where and remedy.
"""

from __future__ import annotations

import socket
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from anyio import to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import heedful
from heedful.apps.studio.course import read_course
from heedful.apps.studio.dropped_models import BeginRequest, DroppedModels, EndRequest
from heedful.apps.studio.guard import Guard, plain_error
from heedful.apps.studio.pages import PAGES
from heedful.apps.web import HUNG_UP, json_object, json_response, media_type
from heedful.config import Config
from heedful.errors import RunError, UserError

if TYPE_CHECKING:
    from starlette.types import Scope

    from heedful.apps.studio.workspace import Workspace

Settings = TypeVar("Settings", bound=Config)

STATIC = Path(__file__).parent / "static"

AT_ONCE = 2
"""Number of calls that are computed at a time; torch uses all cores for each call."""

FIRST_PAGE = 1.0
"""Seconds between the start and the loading of PyTorch, which would delay the first page."""

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
    studio = _Studio(workspace)
    paths = [
        ("/api/dropped/begin", studio.begin_drop),
        (DROP_FILE, studio.receive_file),
        ("/api/dropped/end", studio.end_drop),
        ("/api/{page}/{call}", studio.call),
    ]
    limits = {DROP_FILE: studio.drops.most}
    for page in PAGES:
        limits |= {f"/api/{page.name}/{call}": most for call, most in page.limits.items()}
    return Starlette(
        routes=[
            *(Route(f"/{name}", _shell) for name in ("", *(page.name for page in PAGES))),
            Route("/api/studio", studio.facts),
            Mount("/static", _Scripts(directory=STATIC)),
            *(Route(path, answer, methods=["POST"]) for path, answer in paths),
        ],
        middleware=[Middleware(Guard, host=host, limits=limits, token=token)],
        exception_handlers={
            HTTPException: _not_found,
            UserError: _user_error,
            ClientDisconnect: _hung_up,
            Exception: _internal_error,
        },
        lifespan=studio.lifespan,
    )


DROP_FILE = "/api/dropped/file"


class _Studio:
    """The answers of the studio.

    Args:
        workspace: models and runs for the pages.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.drops = DroppedModels(workspace)
        self.turns = anyio.Semaphore(AT_ONCE)
        self.pages = {page.name: page for page in PAGES}

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Load the pages' calls once the first page has been served.

        At the end a running training is stopped, and dropped models are removed.
        """
        loading = threading.Timer(FIRST_PAGE, load_pages)
        loading.daemon = True
        loading.start()
        yield
        loading.cancel()
        await to_thread.run_sync(self.workspace.training.stop)
        self.drops.close()

    async def facts(self, request: Request) -> Response:
        """Answer with the texts of all pages, the course, and the models and runs."""
        known = self.workspace.places.values()
        return _answer(
            {
                "version": heedful.__version__,
                "pages": [page.plain() for page in PAGES],
                "course": read_course().plain(),
                "places": [await to_thread.run_sync(place.plain) for place in known],
            }
        )

    async def call(self, request: Request) -> Response:
        """Answer a call of a page."""
        page = self.pages.get(request.path_params["page"])
        if page is None:
            raise HTTPException(404)
        await to_thread.run_sync(load_pages)
        call = page.calls.get(request.path_params["call"])
        if call is None:
            raise HTTPException(404)
        settings = await _read(request, call.request)
        async with self.turns:
            # A slider that moves on cancels its previous call.
            if await request.is_disconnected():
                return Response(status_code=HUNG_UP)
            return _answer(await to_thread.run_sync(call.answer, settings, self.workspace))

    async def begin_drop(self, request: Request) -> Response:
        """Return the names of the files of a dropped model: files to send, and files left out."""
        asked = await _read(request, BeginRequest)
        drop, files, left_out = await to_thread.run_sync(self.drops.begin, asked)
        return _answer({"drop": drop, "files": files, "left_out": left_out})

    async def receive_file(self, request: Request) -> Response:
        """Store a file of a dropped model."""
        _check_type(request, "application/octet-stream", "no file")
        drop, name = (request.query_params.get(each, "") for each in ("drop", "name"))
        number = int(drop) if drop.isascii() and drop.isdecimal() and len(drop) < 10 else -1
        await self.drops.receive(number, name, request.stream())
        return _answer({})

    async def end_drop(self, request: Request) -> Response:
        """Load a dropped model whose files are all stored."""
        asked = await _read(request, EndRequest)
        await to_thread.run_sync(load_pages)
        async with self.turns:
            place = await to_thread.run_sync(self.drops.end, asked.drop)
        return _answer(await to_thread.run_sync(place.plain))


_LOADING = threading.Lock()


def load_pages() -> None:
    """Load the calls of all pages, and PyTorch with them, once.

    Threads that import parts of a package at the same time can see incomplete modules, so every
    call waits here for the first call.
    """
    with _LOADING:
        for page in PAGES:
            _ = page.calls


async def _shell(request: Request, status: int = 200) -> Response:
    headers = {"cache-control": "no-cache"}
    return FileResponse(STATIC / "index.html", status_code=status, headers=headers)


async def _not_found(request: Request, error: Exception) -> Response:
    if request.method == "GET" and not request.url.path.startswith(("/api/", "/static/")):
        # The shell says that there is no such page, and links to the start.
        return await _shell(request, 404)
    problem = UserError(
        "There is no such page", where=request.url.path[:200], remedy="Go back to the start: /"
    )
    return _answer(plain_error(problem), getattr(error, "status_code", 404))


async def _user_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, UserError)
    return _answer(plain_error(error), 500 if isinstance(error, RunError) else 400)


async def _hung_up(request: Request, error: Exception) -> Response:
    """Answer nobody: a page was left before its request had arrived, which is no bug."""
    return Response(status_code=HUNG_UP)


async def _internal_error(request: Request, error: Exception) -> Response:
    """Report a bug of Heedful; the traceback goes to the terminal."""
    traceback.print_exception(error, file=sys.stderr)
    report = RunError(
        f"The studio failed: {type(error).__name__}: {error}",
        where=request.url.path,
        remedy="Please report it, with the traceback in the terminal",
    )
    return _answer(plain_error(report), 500)


def _answer(content: Mapping[str, Any], status: int = 200) -> Response:
    return json_response(content, status, ascii_only=True)


async def _read(request: Request, kind: type[Settings]) -> Settings:
    """Return the settings in the body of a request."""
    _check_type(request, "application/json", "no JSON")
    try:
        values = json_object(await request.body())
    except ValueError as error:
        raise UserError(f"The request is {error}", where="the request's body") from None
    return kind.parse(values, where="the page's request")


def _check_type(request: Request, wanted: str, otherwise: str) -> None:
    """Require a media type that a form of another site cannot send."""
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
    """Serve until a signal stops the server.

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

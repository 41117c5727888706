"""`heedful studio`: serve the web pages."""

from __future__ import annotations

import secrets
import threading
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from heedful.cli.text_io import Output, Report, print_json, say
from heedful.errors import ConfigError
from heedful.pretrained.catalogue import directory_of, models_at_hand


def studio(
    *models: Path,
    host: str = ("127.0.0.1"),
    port: int = 8765,
    browser: Annotated[bool, Parameter(name="--open", negative="--no-browser")] = True,
    export: Path | None = None,
    address: str | None = None,
    output: Output = Output(),
) -> None:
    """Explore models, runs and ideas in a browser.

    The pages work offline, and only this machine can reach them unless --host says otherwise. The
    address of a page contains all of its settings, so a link restores the same view. Models that
    come with Heedful are always listed; a folder with another model can be dropped onto a page.

    For example:

        heedful studio run
        heedful studio run other-run --port 0 --no-browser
        heedful studio --export site --address https://example.org/studio

    Args:
        models: Model, run or Hugging Face directories to open.
        host: Address to listen on; 0.0.0.0 admits other machines.
        port: Port to listen on; 0 chooses a free one.
        browser: Open the studio in a browser.
        export: Folder to write the course into as files, with recorded answers, for any web host
            or to be opened from disk; nothing is served.
        address: Address at which --export will be served; links to its pages are then shown with
            their pictures.
    """
    from heedful.apps.sockets import (
        address_of,
        check_packages,
        is_loopback,
        listen,
        outside_address,
    )

    check_packages(("torch", "starlette", "uvicorn"), "The studio", "studio")
    if address is not None and export is None:
        raise ConfigError(
            "An address belongs to an exported course",
            where="--address",
            remedy="Add --export and a folder; to serve pages elsewhere, give --host and --port",
        )
    report = Report("studio", output, models=models, host=host, port=port)
    from heedful.apps.studio.app import serve
    from heedful.apps.studio.workspace import Workspace, compared_runs

    given = [directory_of(path) for path in models]
    at_hand = (each.path for each in models_at_hand().values())
    workspace = Workspace([*given, *at_hand, *compared_runs()])
    if export is not None:
        from heedful.apps.studio.export.site import export_site

        written = export_site(workspace, export, tell=say, address=address)
        say(f"Open {export / 'index.html'}: {written['bytes'] / 1e6:.1f} MB")
        if address is None:
            say("For pictures beside links to a page, name where it will be served: --address")
        report.finish(written)
        return
    listening = listen(host, port)
    token = secrets.token_urlsafe(24)
    link = f"{address_of(listening)}?token={token}"

    def ready() -> None:
        if output.json:
            named = [name for name, each in workspace.places.items() if not each.is_compared]
            print_json({"address": link, "models": named})
        for young in workspace.places.values():
            if young.has_model or young.is_compared:
                continue
            say(f"{young.name} has no model yet; it is shown as soon as training has written one")
        say(f"The studio is at {link} (Ctrl-C stops it)")
        if not is_loopback(host):
            outside = outside_address() if host in ("0.0.0.0", "::") else None
            if outside is not None:
                say(f"From other machines: {address_of(listening, outside)}?token={token}")
            say("Everyone who has this address can use the studio and read its models")
        if browser:  # in a thread, since some browsers block until they are closed
            threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()

    with suppress(KeyboardInterrupt):  # Ctrl-C is the normal way to stop
        serve(workspace, host, listening, ready, token)
    report.finish({"address": link}, summary=False)

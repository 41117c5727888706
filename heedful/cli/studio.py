"""`heedful studio`: serve the web pages."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from heedful.cli.flags import terminal
from heedful.cli.text_io import PLAIN, Output, Report, print_json, say
from heedful.errors import ConfigError
from heedful.pretrained.catalogue import directory_of, models_at_hand

if TYPE_CHECKING:
    from heedful.events import Events

_NEEDED = ("starlette", "uvicorn")
_PAIRS, _HELD_OUT, _STEPS, _MINUTES = 50_000, 1000, 1000, 10.0


def studio(
    *models: Annotated[Path, Parameter(help="Model, run or Hugging Face directories.")],
    host: Annotated[str, Parameter(help="Address to listen on; 0.0.0.0 is open to others.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, Parameter(help="Port to listen on; 0 takes a free one.")] = 8765,
    browser: Annotated[
        bool, Parameter(name="--open", negative="--no-browser", help="Open the page in a browser.")
    ] = True,
    output: Output = PLAIN,
) -> None:
    """Explore models, runs and ideas in a browser.

    The pages need no network, and only this machine can reach them. The address of a page holds all
    of its settings, so a link brings back the same picture. Without a model, the studio trains the
    demo's, or uses the one trained before.

    For example:

        heedful studio run
        heedful studio run other-run --port 0 --no-browser
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"The studio needs {' and '.join(missing)}",
            where="heedful studio",
            remedy="Install it with: pip install 'heedful[studio]'",
        )
    flags = {"models": [str(path) for path in models], "host": host, "port": port}
    report = Report("studio", output, flags)
    from heedful.studio.app import address_of, listen, outside_address, serve
    from heedful.studio.guard import is_loopback
    from heedful.studio.workspace import Workspace

    with closing(terminal()) as events:
        at_hand = [each.path for each in models_at_hand().values()]
        given = [directory_of(path) for path in models]
        workspace = Workspace([*given, *at_hand] or [demo_run(events)])
    listening = listen(host, port)
    token = secrets.token_urlsafe(24)
    address = f"{address_of(listening)}?token={token}"

    def ready() -> None:
        if output.json:
            print_json({"address": address, "models": list(workspace.places)})
        say(f"The studio is at {address} (Ctrl-C stops it)")
        if not is_loopback(host):
            outside = outside_address() if host in ("0.0.0.0", "::") else None
            if outside is not None:
                say(f"From other machines: {address_of(listening, outside)}?token={token}")
            say("Everyone who has this address can use the studio and read its models")
        if browser:
            _open(address)

    with suppress(KeyboardInterrupt):  # how a studio is left
        serve(workspace, host, listening, ready, token)
    report.finish({"address": address}, summary=False)


def demo_run(events: Events) -> Path:
    """The run of the demo in the cache folder, trained on first use."""
    from heedful.cli.demo_run import NOTE_FILE, DemoPlan, run_demo

    out = cache_folder() / "demo-en-fr"
    note = out / NOTE_FILE
    if not note.is_file() or json.loads(note.read_text(encoding="utf-8")).get("training") is None:
        events.note(f"No model given: training the demo's in {out}")
        out.parent.mkdir(parents=True, exist_ok=True)
        plan = DemoPlan(
            "en",
            "fr",
            pairs=_PAIRS,
            held_out=_HELD_OUT,
            steps=_STEPS,
            minutes=_MINUTES,
            seed=1,
        )
        run_demo(out, plan, events)
    return out / "run"


def cache_folder() -> Path:
    """The folder for files that can be made again."""
    above = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(above) / "heedful"


def _open(address: str) -> None:
    """Open a browser from a thread: some wait until they are closed."""
    import threading
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

"""Write what the studio's pages ask for, so that `heedful studio --export` can record the answers.

    python tools/record_requests.py [--pages tour attention …]

Every page is opened in Firefox: as it opens, with each model and each example, at the addresses of
the course, with every option of every control, and with every box of a figure. What it asks the
studio for goes into `heedful/apps/studio/export/requests.json`. Calls that the models answer in the
page itself are listed for the first two and the course alone. Run it after a change of a page's
controls or calls.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import uvicorn

sys.path.insert(0, str(Path(__file__).parents[1]))
from heedful.apps.sockets import address_of, listen
from heedful.apps.studio.app import build_app
from heedful.apps.studio.course import read_course
from heedful.apps.studio.export.recording import (
    EACH_EXAMPLE,
    EACH_HEAD,
    FIRST_EXAMPLE,
    REQUESTS,
)
from heedful.apps.studio.export.site import runs_in_page
from heedful.apps.studio.pages import PAGES
from heedful.apps.studio.spoken_words import WORDS
from heedful.apps.studio.workspace import Workspace, compared_runs
from heedful.pretrained.catalogue import models_at_hand
from tests.apps.studio.firefox import READY, Firefox, window

IN_PAGE = {
    "attention": {"influence", "neurons", "overview", "show"},
    "block": {"contexts", "flow", "stream"},
    "decoding": {"beam", "greedy", "step"},
    "everywhere": {"image", "text"},
    "image": {"erase", "look"},
    "steps": {"follow"},
    "tour": {"walk"},
    "translate": {"alternatives", "text"},
}
"""Calls that the models answer in the page, see `static/engine/answers.js`."""
BY_FORMULA = {
    "builder": {"build"},
    "masks": {"draw"},
    "paths": {"measure", "steps"},
    "positions": {"beyond", "show", "shuffled"},
    "scale": {"compare", "sweep"},
    "schedule": {"curve"},
    "steps": {"attend"},
}
"""Calls that are answered there without a model, if they name none."""
OTHER_LAYERS = {"mixer", "encoder_mixer", "network", "recurrent", "convolution"}
"""Settings of a shape whose costs are recorded, since not all of its layers attend."""
NOT_RECORDED = {"train", "stop", "picture"}
"""Calls that change something, or write a file."""
PRESSED = [["everywhere", "spoken", {"word": word}] for word in WORDS]
"""What buttons ask for that are no examples."""
STOPS = 9
"""Maximum number of stops of a slider that are recorded."""
TEXTS = ("translator", "causal_lm", "encoder")
PATIENCE = 60.0
TEMPERATURE = 0.8
"""Temperature at which the page of samples opens."""

FOLDS = """document.querySelectorAll("main details.chapter-fold")
  .forEach((each) => { each.open = true; })"""
LIST = """([...document.querySelectorAll("main details:is(:has(.examples), .chapter-fold)")]
  .forEach((each) => { each.open = true; }),
  [...document.querySelectorAll("main :is(input, select, .examples button)")]
  .filter((each) => (each.checkVisibility() || each.closest(".side details"))
    && !each.disabled && !each.readOnly
    && ["select-one", "checkbox", "range", "button"].includes(each.type)
    && !each.closest(".questions"))
  .map((each, i) => {
    each.dataset.tried = i;
    if (each.type === "button") return [i, [null]];
    if (each.type === "checkbox") return [i, [!each.checked, each.checked]];
    if (each.type === "range") {
      const [low, high, step] = ["min", "max", "step"].map((name) => Number(each[name]));
      const count = Math.round((high - low) / step);
      const stride = Math.ceil(count / (STOPS - 1));
      const stops = [];
      for (let k = 0; k <= count; k += stride) stops.push(String(low + k * step));
      return [i, [...stops, each.value]];
    }
    return [i, [...each.options].map((one) => one.value).concat(each.value)];
  }))"""

SET = """((i, value) => {
  const element = document.querySelector(`[data-tried="${i}"]`);
  if (!element) return;
  if (element.type === "button") element.click();
  else if (element.type === "checkbox") {
    if (element.checked !== value) element.click();
  } else {
    element.value = value;
    element.dispatchEvent(new Event("input", { bubbles: true }));
    element.dispatchEvent(new Event("change", { bubbles: true }));
  }
})"""


class Recorder:
    """The studio's application, with a list of what is asked for.

    Args:
        app: application of the studio.
    """

    def __init__(self, app: Any) -> None:
        self.app = app
        self.requests: list[tuple[str, str, dict[str, Any]]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, and keep its body."""
        path = scope.get("path", "").split("/")
        if scope["type"] != "http" or path[1] != "api" or len(path) != 4 or path[2] == "dropped":
            await self.app(scope, receive, send)
            return
        body = b""

        async def read() -> Any:
            nonlocal body
            message = await receive()
            body += message.get("body", b"")
            if message["type"] == "http.request" and not message.get("more_body"):
                self.requests.append((path[2], path[3], json.loads(body)))
            return message

        await self.app(scope, read, send)


@contextmanager
def serving(workspace: Workspace) -> Iterator[tuple[str, Recorder]]:
    """Serve the models at hand; the address, and what is asked for."""
    listening = listen("127.0.0.1", 0)
    recorder = Recorder(build_app(workspace))
    server = uvicorn.Server(uvicorn.Config(recorder, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield address_of(listening), recorder
    finally:
        server.should_exit = True
        thread.join()


def main() -> None:
    """Open the pages, use their controls, and write the list."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", nargs="*", help="all if not given")
    names = parser.parse_args().pages or [page.name for page in PAGES]
    listed = json.loads(REQUESTS.read_text(encoding="utf-8")) if REQUESTS.is_file() else {}
    workspace = Workspace([*(each.path for each in models_at_hand().values()), *compared_runs()])
    with (
        serving(workspace) as (home, recorder),
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        window(Path(profile)) as firefox,
    ):
        found = {name: PageRequests(name, workspace, recorder) for name in names}
        for look in (PageRequests.open_states, PageRequests.use_controls):
            for name, requests in found.items():
                look(requests, firefox, home + name)
                others = [*PRESSED, *of_records(workspace)] if name == "everywhere" else []
                listed[name] = merged([*requests.found.values(), *others])
                print(f"{name}: {len(listed[name])} requests", flush=True)
                write(listed)


def of_records(workspace: Workspace) -> list[Any]:
    """Return the requests about each sample of the models of records that run in no page.

    A sample's record is what the model wrote, so it is asked for what it writes.
    """
    page = next(each for each in PAGES if each.name == "everywhere")
    complete = page.calls["complete"]
    requests: list[Any] = []
    for place in workspace.places.values():
        if place.kind() != "records" or runs_in_page(place):
            continue
        for example in place.plain()["examples"]:
            body = {"model": place.name, "record": example["text"], "keep": None}
            body |= {"temperature": TEMPERATURE, "seed": 1}
            requests.append(["everywhere", "complete", body])
            found = complete.answer(complete.request.parse(body), workspace)
            for sample in found["samples"]:
                # The token at which the page opens: in the middle of what the model wrote.
                count, step = len(sample["tokens"]), found["step"]
                first = sample["kept"] if sample["kept"] < count else 0
                middle = first + (count - first) // step // 2 * step + step // 2
                asked = {"model": place.name, "record": sample["record"]}
                asked |= {"token": min(count - 1, middle), "layer": EACH_HEAD, "head": EACH_HEAD}
                requests.append(["everywhere", "weights", asked])
    return requests


def merged(requests: list[Any]) -> list[Any]:
    """Return requests without those that are there already."""
    return list({json.dumps(each, sort_keys=True): each for each in requests}.values())


def write(listed: dict[str, list[Any]]) -> None:
    """Write the list, a request a line."""
    pages = [
        f" {json.dumps(page)}: [\n" + ",\n".join(f"  {json.dumps(each)}" for each in found)
        for page, found in listed.items()
    ]
    REQUESTS.write_text("{\n" + "],\n".join(pages) + "]\n}\n", encoding="utf-8")


class PageRequests:
    """What a page asks for.

    Args:
        name: name of the page.
        workspace: models whose names and examples stand in requests.
        recorder: application that serves the page.
    """

    def __init__(self, name: str, workspace: Workspace, recorder: Recorder) -> None:
        self.name = name
        self.places = {place.name: place.plain() for place in workspace.places.values()}
        self.recorder = recorder
        self.found: dict[str, list[Any]] = {}

    def open_states(self, firefox: Firefox, address: str) -> None:
        """Open the page as it begins, with a model of each kind, and at the course's addresses."""
        firefox.open(address)
        firefox.value("sessionStorage.clear()")  # what the page before left
        self.recorder.requests.clear()
        firefox.open(address)
        self.keep(firefox, EACH_EXAMPLE)
        if firefox.value("document.querySelector('#example') !== null"):
            for place in {each["kind"]: each for each in self.places.values()}.values():
                if place["kind"] in TEXTS:
                    settings = {"model": place["name"], "text": place["examples"][0]["text"]}
                    firefox.open(f"{address}?{urlencode(settings)}")
                    self.keep(firefox, EACH_EXAMPLE)
                    self.open_boxes(firefox)
        for query in self.queries():
            firefox.value("sessionStorage.clear()")
            firefox.open(f"{address}?{query}")
            self.keep(firefox, "")

    def open_boxes(self, firefox: Firefox) -> None:
        """Open every box of a figure of the model; of the first example, all is recorded."""
        boxes = "[...document.querySelectorAll('[data-box]')]"
        for index in range(int(firefox.value(f"{boxes}.length"))):
            firefox.value(f"{boxes}[{index}].click()")
            wait(firefox)
        self.keep(firefox, "")

    def use_controls(self, firefox: Firefox, address: str) -> None:
        """Choose every option of every control of the page as it opens."""
        firefox.open(address)
        firefox.value("sessionStorage.clear()")
        firefox.open(address)
        self.recorder.requests.clear()
        controls = firefox.value(f"JSON.stringify({LIST.replace('STOPS', str(STOPS))})")
        for index, values in json.loads(controls):
            for value in values:
                firefox.value(f"{SET}({index}, {json.dumps(value)})")
                wait(firefox)
            self.keep(firefox, FIRST_EXAMPLE)

    def queries(self) -> list[str]:
        """Return the addresses of the page in the course."""
        lesson = next((each for each in read_course().lessons if each.page == self.name), None)
        parts = () if lesson is None else (*lesson.tries, *lesson.questions)
        return list(dict.fromkeys(each.query for each in parts if each.query))

    def keep(self, firefox: Firefox, example: str) -> None:
        """Keep what was asked for since the last time.

        Args:
            firefox: browser with the page.
            example: word for the text of an example, or empty at an address of the course, whose
                requests are all kept.
        """
        firefox.value(FOLDS)  # a part that is opened asks for what it shows
        wait(firefox)
        for page, call, body in self.recorder.requests:
            first = example == EACH_EXAMPLE
            model = body.get("model")
            in_page = IN_PAGE if model and isinstance(model, str) else BY_FORMULA
            if isinstance(model, dict) and model.keys() & OTHER_LAYERS:
                in_page = {}
            computed = call in in_page.get(page, ()) and not (first or not example)
            place = self.places.get(str(body.get("model", "")))
            if call in NOT_RECORDED or computed:
                continue
            if place is not None and (place["kind"] in TEXTS or list(body) == ["model"]):
                body |= {"model": f"@{place['kind']}"}
                if body.get("text") in [each["text"] for each in place["examples"]]:
                    body |= {"text": example or FIRST_EXAMPLE}
            self.found.setdefault(
                json.dumps([page, call, body], sort_keys=True), [page, call, body]
            )
        self.recorder.requests.clear()


def wait(firefox: Firefox) -> None:
    """Wait until nothing is being drawn."""
    time.sleep(0.06)
    deadline = time.monotonic() + PATIENCE
    while not firefox.value(READY):
        assert time.monotonic() < deadline
        time.sleep(0.03)


if __name__ == "__main__":
    main()

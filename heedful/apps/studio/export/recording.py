"""Answers of the pages, recorded for an exported site.

`requests.json` lists what the pages ask for: in the state in which they open, at the addresses of
the course, and one choice away from there. `tools/record_requests.py` writes it with a browser. A
request names a kind of model and an example instead of a model and a text, so it is answered for
each model and each of its examples.
"""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from heedful.apps.studio.guard import plain_error
from heedful.apps.studio.pages import PAGES, Page
from heedful.apps.studio.workspace import Workspace
from heedful.errors import UserError
from heedful.inspect.attention_maps import attentions, num_heads

REQUESTS = Path(__file__).with_name("requests.json")

EACH_EXAMPLE = "@example"
"""Text of a request that stands for every example of its model."""
FIRST_EXAMPLE = "@first"
"""Text of a request that stands for the first example, with which a page opens."""
EACH_HEAD = "@each"
"""Layer of a request that stands for every head of every layer, their means and the last layer."""

DIGITS = 4
"""Number of significant digits in recorded answers: pages write four."""


@dataclass
class PageAnswers:
    """Recorded answers of a page.

    Args:
        keys: index of the answer by call and request, see `request_key`.
        values: answers as JSON, each once.
    """

    keys: dict[str, dict[str, int]] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)

    def add(self, call: str, key: str, answer: Any) -> None:
        """Add the answer of a call to a request."""
        text = json.dumps(rounded(answer), ensure_ascii=False, separators=(",", ":"))
        self.keys.setdefault(call, {})[key] = self.values.setdefault(text, len(self.values))

    def script(self, page: str) -> str:
        """Return the script that gives the answers to a site's pages.

        Args:
            page: name of the page.
        """
        keys, values = json.dumps(self.keys, ensure_ascii=False), ",".join(self.values)
        answers = packed(f'{{"keys":{keys},"values":[{values}]}}'.encode())
        return f"heedfulSite.answers[{json.dumps(page)}] = {json.dumps(answers)};\n"


def packed(data: bytes) -> str:
    """Return data for a script, compressed: a page from `file://` can read only scripts."""
    return base64.b64encode(gzip.compress(data, mtime=0)).decode("ascii")


def record(page: Page, workspace: Workspace) -> PageAnswers:
    """Answer the listed requests of a page; a refusal is an answer too.

    Args:
        page: page of the studio.
        workspace: models and runs.
    """
    found = PageAnswers()
    defaults = defaults_of(page)
    for name, body in requests_of(page.name, workspace):
        call = page.calls[name]
        answer: Mapping[str, Any]
        try:
            settings = call.request.parse(body, where="the page's request")
            answer = call.answer(settings, workspace)
        except UserError as error:
            answer = {"refused": plain_error(error)}
        found.add(name, request_key(defaults[name] | body), answer)
    return found


def requests_of(page: str, workspace: Workspace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield calls and bodies of a page's requests, for the models of a workspace.

    Args:
        page: name of the page.
        workspace: models and runs.
    """
    listed = json.loads(REQUESTS.read_text(encoding="utf-8"))
    places = [place.plain() for place in workspace.places.values()]
    if page == "runs":  # pages join any runs from these, so not every set of runs is recorded
        logged = (name for name, place in workspace.places.items() if place.log is not None)
        yield from (("record", {"run": name}) for name in logged)
    # A page may ask for answers of another, so the list is by the page that asks.
    for asked, name, body in itertools.chain.from_iterable(listed.values()):
        if asked != page:
            continue
        model = str(body.get("model", ""))
        if not model.startswith("@"):
            yield from ((name, each) for each in _with_heads(body, workspace))
            continue
        for place in places:
            if place["kind"] == model[1:]:
                for filled in _with_examples(body, place["examples"]):
                    yield name, filled | {"model": place["name"]}


def _with_heads(body: dict[str, Any], workspace: Workspace) -> list[dict[str, Any]]:
    if body.get("layer") != EACH_HEAD:
        return [body]
    if body["model"] not in workspace.places:
        return []
    layers = attentions(workspace.place(body["model"]).load().model, "decoder")
    chosen = itertools.product(range(-1, len(layers)), range(-1, num_heads(layers)))
    return [body | {"layer": layer, "head": head} for layer, head in chosen]


def _with_examples(body: dict[str, Any], examples: list[dict[str, str]]) -> list[dict[str, Any]]:
    if body.get("text") not in (EACH_EXAMPLE, FIRST_EXAMPLE):
        return [body]
    chosen = examples if body["text"] == EACH_EXAMPLE else examples[:1]
    return [body | {"text": each["text"]} for each in chosen]


def defaults_of(page: Page) -> dict[str, dict[str, Any]]:
    """Return the defaults of the requests of a page's calls, as JSON data."""
    return {
        name: {
            key: to_jsonable_python(value.get_default(call_default_factory=True))
            for key, value in call.request.model_fields.items()
            if not value.is_required()
        }
        for name, call in page.calls.items()
    }


def request_key(settings: Any) -> str:
    """Return the key of a request's answer: JSON as `JSON.stringify` writes it, names in order.

    Args:
        settings: settings of the request, defaults too.
    """
    if isinstance(settings, dict):
        items = (f"{_text(name)}:{request_key(settings[name])}" for name in sorted(settings))
        return "{" + ",".join(items) + "}"
    if isinstance(settings, list | tuple):
        return "[" + ",".join(map(request_key, settings)) + "]"
    return _number(settings) if isinstance(settings, float) else _text(settings)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _number(value: float) -> str:
    """Return a number as JavaScript writes it, which has no exponent from 1e-6 to 1e21."""
    text = repr(value)
    if value == 0 or 1e-6 <= abs(value) < 1e21:
        return format(Decimal(text), "f").removesuffix(".0")
    return re.sub(r"e([+-])0", r"e\1", text)


def rounded(value: Any) -> Any:
    """Return JSON data with numbers of `DIGITS` significant digits."""
    if isinstance(value, float):
        if value == 0 or not math.isfinite(value):
            return value
        short = float(f"{value:.{DIGITS - 1}e}")
        if not math.isfinite(short):
            short = math.copysign(1.797e308, value)  # the largest float of four digits
        return int(short) if short.is_integer() else short
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list | tuple) else value


def chosen_pages(names: Collection[str] | None) -> list[Page]:
    """Return the pages of some names, all if there are none, in the order of the course."""
    return [page for page in PAGES if names is None or page.name in names]

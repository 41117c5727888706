"""The exported course: one script of all modules, recorded answers, pages opened from disk."""

from __future__ import annotations

import base64
import html
import io
import json
import re
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from heedful.apps.studio.app import STATIC
from heedful.apps.studio.export.recording import record, request_key, requests_of, rounded
from heedful.apps.studio.export.script_bundle import bundle, wrap
from heedful.apps.studio.export.site import PREVIEW_SIZE, PREVIEWS, export_site, preview_of, shell
from heedful.apps.studio.pages import PAGES as PAGES_OF_STUDIO
from heedful.apps.studio.workspace import Workspace
from heedful.errors import UserError
from heedful.pretrained.catalogue import models_at_hand

from .chromium import Chromium
from .firefox import DRAWING, PROBLEMS, Firefox, path_of_firefox, window

PAGES = ("tour", "scale", "translate", "builder", "without")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: x != 0 or str(x) == "0.0"),
    lambda each: st.lists(each) | st.dictionaries(st.text("aBc_"), each),
    max_leaves=8,
)  # fmt: skip


def test_a_module_becomes_a_function_that_returns_its_exports() -> None:
    text = (
        'import { a, b as c } from "../b.js";\nimport "../vendor/d.js";\n'
        'export const e = c;\nexport async function f() { await import("./g.js"); }\n'
        'export { h } from "./i.js";\n'
    )
    assert wrap("x/y.js", text).splitlines() == [
        'modules["x/y.js"] = () => {',
        'const { a, b: c } = load("b.js");',
        'load("vendor/d.js");',
        "const e = c;",
        'async function f() { await loadLater("x/", "./g.js"); }',
        'const { h } = load("x/i.js");',
        "",
        "return { h, e, f };",
        "};",
    ]


def test_a_form_of_export_that_is_unknown_is_refused() -> None:
    with pytest.raises(ValueError, match=r"y\.js: this form of import or export is unknown"):
        wrap("y.js", "export default 3;\n")


@pytest.mark.parametrize("line", ["async function load() {}", "const modules = 3;"])
def test_a_name_of_the_loader_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"y\.js: \w+ is a name of the loader"):
        wrap("y.js", f"export const a = 1;\n{line}\n")


def node(script: str) -> str:
    if shutil.which("node") is None:
        pytest.skip("there is no node: install Debian's with `apt-get install -y nodejs`")
    run = subprocess.run(["node", "-"], input=script, capture_output=True, text=True, check=True)
    return run.stdout


def test_the_bundle_is_a_script_for_javascript() -> None:
    text = bundle(STATIC, "shell.js")
    node(f"new (require('vm').Script)({json.dumps(text)})")


@settings(max_examples=4, deadline=None)  # each starts node
@given(st.lists(JSON, min_size=20, max_size=60))
def test_a_request_has_the_key_that_javascript_gives_it(values: list[Any]) -> None:
    script = (STATIC / "recorded.js").read_text(encoding="utf-8")
    own = script[script.index("function inOrder") : script.index("/**\n * Answer a call.")]
    bodies = [{"value": value} for value in values]
    found = node(
        f"{own}\nconst bodies = JSON.parse({json.dumps(json.dumps(bodies))});"
        "console.log(JSON.stringify(bodies.map((each) => keyOf({}, each))));"
    )
    assert json.loads(found) == [request_key(each) for each in bodies]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_recorded_numbers_keep_four_digits(value: float) -> None:
    short = rounded([value])[0]
    assert short == pytest.approx(value, rel=0.0006, abs=1e-307)
    assert float(f"{short:.3e}") == short


def test_answers_are_recorded_of_the_head_that_a_page_opens_at() -> None:
    """The card says which head that is, and may name another after a training."""
    if "en-de" not in models_at_hand():
        pytest.skip("en-de is not at hand")
    workspace = Workspace([models_at_hand()["en-de"].path])
    [own] = [
        each for each in models_at_hand()["en-de"].card().example_heads if each.part == "encoder"
    ]
    followed = [
        body
        for page, call in (("steps", "follow"), ("tour", "walk"))
        for name, body in requests_of(page, workspace)
        if name == call and (body["layer"], body["head"]) == (own.layer - 1, own.head - 1)
    ]
    examples = workspace.place("en-de").plain()["examples"]
    assert {body["text"] for body in followed} == {each["text"] for each in examples}
    assert any("row" in body for body in followed)


def test_a_request_is_answered_for_each_model_of_its_kind_and_each_example() -> None:
    if "en-de" not in models_at_hand():
        pytest.skip("en-de is not at hand")
    workspace = Workspace([models_at_hand()["en-de"].path])
    asked = [body for name, body in requests_of("tour", workspace) if name == "walk"]
    examples = {each["text"] for each in workspace.place("en-de").plain()["examples"]}
    assert examples <= {body["text"] for body in asked}
    assert {body["model"] for body in asked if not body["model"].startswith("english")} == {"en-de"}


def test_every_head_of_a_model_that_runs_in_no_page_is_recorded() -> None:
    if "room-actor" not in models_at_hand():
        pytest.skip("room-actor is not at hand")
    workspace = Workspace([models_at_hand()["room-actor"].path])
    asked = [
        body
        for name, body in requests_of("everywhere", workspace)
        if name == "weights" and body["model"] == "room-actor"
    ]
    heads: dict[tuple[str, int], set[tuple[int, int]]] = {}
    for body in asked:
        record = heads.setdefault((body["record"], body["token"]), set())
        record.add((body["layer"], body["head"]))
    every = {(layer, head) for layer in range(-1, 3) for head in range(-1, 6)}
    # Of each step of an episode; where one comes back to a cell, the record is the same.
    assert sum(each == every for each in heads.values()) > len(
        workspace.place("room-actor").plain()["examples"]
    )


def test_what_a_page_refuses_is_recorded_as_refused() -> None:
    schedule = next(page for page in PAGES_OF_STUDIO if page.name == "schedule")
    found = record(schedule, Workspace([]))
    refused = [json.loads(text) for text in found.values if text.startswith('{"refused"')]
    assert any("en-de" in each["refused"]["what"] for each in refused)


PAGE_NAMES = [page.name for page in PAGES_OF_STUDIO]


def test_every_page_has_a_small_preview_of_its_own() -> None:
    files = {preview_of(name): (PREVIEWS / preview_of(name)).read_bytes() for name in PAGE_NAMES}
    files[preview_of("")] = (PREVIEWS / preview_of("")).read_bytes()
    assert {file.name for file in PREVIEWS.iterdir()} == set(files)
    assert len(set(files.values())) == len(PAGE_NAMES) + 1
    assert sum(map(len, files.values())) < 400_000
    for name, content in files.items():
        assert content[:8] == b"\x89PNG\r\n\x1a\n", name
        assert struct.unpack(">II", content[16:24]) == PREVIEW_SIZE, name


def meta(document: str) -> dict[str, str]:
    """The properties of a document for those who show links to it."""
    found = re.findall(r'<meta (?:property|name)="([\w:]+)" content="([^"]*)">', document)
    return {name: html.unescape(value) for name, value in found}


def test_a_link_is_shown_with_the_picture_and_the_words_of_its_page() -> None:
    alone = [meta(shell(page)) for page in (None, *PAGES_OF_STUDIO)]
    for name, found in zip(("", *PAGE_NAMES), alone, strict=True):
        assert found["og:image"] == f"previews/{preview_of(name)}"
        assert "og:url" not in found
        assert "`" not in found["og:image:alt"]
    for key in ("og:title", "og:description", "og:image:alt"):
        assert len({found[key] for found in alone}) == len(alone), key


@pytest.mark.parametrize("slash", ["", "/"])
def test_links_to_a_site_of_a_known_address_are_whole(tmp_path: Path, slash: str) -> None:
    home = "https://example.org/a&b"
    export_site(Workspace([]), tmp_path, pages=["scale"], address=home + slash)
    for file, name in (("index.html", ""), ("scale.html", "scale")):
        found = meta((tmp_path / file).read_text(encoding="utf-8"))
        assert found["og:url"] == f"{home}/{name and file}"
        assert found["og:image"] == f"{home}/previews/{preview_of(name)}"
        assert (tmp_path / "previews" / preview_of(name)).is_file()


@pytest.mark.parametrize(
    "address",
    ["example.org", "/srv/studio", "ftp://example.org", "https:///a", "https://a.org/index.html",
     "https://a.org/?page=1", "https://a.org/#top"],
)  # fmt: skip
def test_an_address_of_no_folder_is_refused_before_anything_is_written(
    tmp_path: Path, address: str
) -> None:
    with pytest.raises(UserError, match="not the address of a folder") as refused:
        export_site(Workspace([]), tmp_path / "site", pages=[], address=address)
    assert address in str(refused.value.where)
    assert not (tmp_path / "site").exists()


def test_other_files_are_not_mixed_with_a_site(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match="holds other files"):
        export_site(Workspace([]), tmp_path, pages=[])
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a course of a few pages, opened from disk."""
    if "en-de" not in models_at_hand():
        pytest.skip("en-de is not at hand")
    folder = tmp_path_factory.mktemp("site") / "a folder"
    models = Workspace([models_at_hand()[name].path for name in ("en-de", "digits", "coin-player")])
    export_site(models, folder, [*PAGES, "image", "steps", "everywhere"])
    return folder.as_uri()


@pytest.fixture(scope="module")
def served(site: str) -> Iterator[str]:
    """The address of the same course on a plain server of files."""
    folder = unquote(urlsplit(site).path)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietFiles, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(10)


class QuietFiles(SimpleHTTPRequestHandler):
    """Files of a folder, without a line for each request."""

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module", params=["Firefox", "Chromium"])
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Firefox | Chromium]:
    """A window of each browser."""
    if request.param == "Chromium":
        chromium = Chromium(request.getfixturevalue("browser"))
        yield chromium
        chromium.close()
        return
    if path_of_firefox() is None:
        pytest.skip("there is no Firefox: install Debian's with `apt-get install -y firefox-esr`")
    with window(tmp_path_factory.mktemp("firefox")) as firefox:
        yield firefox


@pytest.mark.parametrize("place", ["site", "served"])
@pytest.mark.parametrize("page", ["index", *PAGES])
def test_a_page_from_disk_and_from_a_server(
    opened: Firefox | Chromium, request: pytest.FixtureRequest, place: str, page: str
) -> None:
    site = request.getfixturevalue(place)
    opened.forget()
    opened.open(f"{site}/{page}.html")
    assert opened.value(PROBLEMS) == ""
    assert opened.value("document.querySelectorAll('main svg').length") > 0 or page == "translate"
    assert opened.said() == []
    links = opened.value("[...document.querySelectorAll('a')].map((each) => each.href).join(' ')")
    assert [link for link in links.split() if not link.startswith(site)] == []


def test_a_sentence_of_ones_own_is_translated_by_the_model_in_the_page(
    opened: Firefox | Chromium, site: str
) -> None:
    opened.open(f"{site}/translate.html?text=The+dog+sleeps.")
    assert opened.value(PROBLEMS) == ""
    assert "Hund" in opened.value("document.querySelector('#translation').textContent")


def test_a_digit_that_is_drawn_is_read_by_the_model_in_the_page(
    opened: Firefox | Chromium, site: str
) -> None:
    seven = "0*93.f*10.0*18.f*10.0*24.f*4.0*23.f*4.0*24.f*4.0*23.f*4.0*24.f*4.0*23.f*4.0*24.f*4."
    seven += "0*23.f*4.0*24.f*4.0*23.f*4.0*24.f*4.0*23.f*4.0*24.f*4."
    size = sum(int(count) for count in re.findall(r"\*(\d+)", seven))
    opened.open(f"{site}/image.html?picture=drawing&patch=10&drawing={seven}0*{784 - size}.")
    wait_for(opened, "document.querySelector('[data-fact=erased]') !== null")
    assert opened.value("document.querySelector('[data-fact=label]').textContent") == "7"
    assert opened.value(PROBLEMS) == ""


def test_a_file_that_is_uploaded_is_read_by_the_model_in_the_page(
    opened: Firefox | Chromium, site: str
) -> None:
    rows = np.zeros((80, 70), np.uint8)
    rows[14:20, 18:52] = 255
    for down in range(50):
        rows[14 + down, 46 - down // 2 : 52 - down // 2] = 255
    file = io.BytesIO()
    Image.fromarray(rows).save(file, "PNG")
    opened.open(f"{site}/image.html")
    opened.value(
        f"""(() => {{
          const letters = atob("{base64.b64encode(file.getvalue()).decode()}");
          const bytes = Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
          const chosen = new DataTransfer();
          chosen.items.add(new File([bytes], "seven.png", {{ type: "image/png" }}));
          const input = document.querySelector("#file");
          input.files = chosen.files;
          input.dispatchEvent(new Event("change"));
        }})()"""
    )
    wait_for(opened, "document.querySelector('[data-fact=label]').textContent === '7'")
    wait_for(opened, "document.querySelector('[aria-busy=true]') === null")
    assert opened.value(PROBLEMS) == ""


def test_an_episode_that_is_not_recorded_is_played_in_the_page(
    opened: Firefox | Chromium, site: str
) -> None:
    opened.open(f"{site}/everywhere.html?records=coin-player&seed=4711&layer=2&head=3")
    assert opened.value(PROBLEMS) == ""
    words = opened.value(
        "[...document.querySelectorAll('.samples')].map((each) => each.innerText).join()"
    )
    assert "layer 2 of 3, head 3" in words


def test_numbers_that_are_typed_attend_in_the_page(opened: Firefox | Chromium, site: str) -> None:
    opened.open(f"{site}/steps.html?stage=6&q=1+0&k=1+0%0A0+1&v=33%0A55&scale=0")
    assert opened.value(PROBLEMS) == ""
    words = opened.value("document.querySelector('[data-stage].reached').innerText")
    assert "44" in words  # half of 33 and half of 55


MARKS = "performance.getEntriesByType('mark').map((each) => each.name).join()"


def test_a_model_computes_in_a_thread_of_the_page(opened: Firefox | Chromium, site: str) -> None:
    """From disk, too; where there are no threads the page computes, to the same translation."""
    address = f"{site}/translate.html?text=The+two+dogs+sleep."
    words = "document.querySelector('#translation').textContent"
    opened.forget()
    opened.open(address)
    wait_for(opened, f"{MARKS}.includes('engine in a thread')")
    wait_for(opened, "document.querySelector('#translation')?.textContent.trim()")
    translated = opened.value(words)
    assert opened.said() == []
    none = "globalThis.Worker = class { constructor() { throw new Error('none'); } };"
    with opened.first(none):
        opened.open(address)
    assert "engine in the page" in opened.value(MARKS)
    assert opened.value(words) == translated


def wait_for(opened: Firefox | Chromium, condition: str) -> None:
    deadline = time.monotonic() + DRAWING
    while not opened.value(condition):
        assert time.monotonic() < deadline, f"{condition}: {opened.value(PROBLEMS)}"
        time.sleep(0.05)


def test_the_model_in_the_page_says_why_it_wrote_a_word(
    opened: Firefox | Chromium, site: str
) -> None:
    opened.forget()
    opened.open(f"{site}/translate.html?text=The+two+dogs+sleep.")
    opened.value("document.querySelector('#translation .word:nth-of-type(3)').click()")
    sentence = "(document.querySelector('.why .sentence')?.textContent ?? '')"
    wait_for(opened, f"{sentence}.includes('“dogs” speaks for it most')")
    wait_for(opened, "document.querySelectorAll('.why table tbody tr').length > 3")  # the lens
    change = "dispatchEvent(new Event('change'))"
    opened.value(f"const against = document.querySelector('#why-against'); "
                 f"against.selectedIndex = 1; against.{change}")  # fmt: skip
    wait_for(opened, f"{sentence}.includes(' less that of ')")
    silent = (
        "[...document.querySelectorAll('.why .off-switch')].find((e) => e.textContent === '{}')"
    )
    opened.value(f"{silent.format('dogs')}.click()")
    again = "document.querySelector('#again').textContent"
    wait_for(opened, f"{again}.includes('log-probability') && !{again}.includes('Hunde')")
    assert opened.value(PROBLEMS) == ""
    assert opened.said() == []


def test_a_model_in_a_thread_refuses_in_words(opened: Firefox | Chromium, site: str) -> None:
    opened.open(f"{site}/translate.html?text={'word+' * 1500}")
    assert "characters" in opened.value(PROBLEMS) or "tokens" in opened.value(PROBLEMS)
    assert "failed" not in opened.value(PROBLEMS)


def test_a_site_carries_the_previews_of_its_pages(site: str) -> None:
    folder = Path(unquote(urlsplit(site).path))
    found = {file.name for file in (folder / "previews").iterdir()}
    assert found == {preview_of(name) for name in ("", *PAGES, "image", "steps", "everywhere")}


def test_a_box_of_the_whole_model_opens_from_disk(opened: Firefox | Chromium, site: str) -> None:
    opened.forget()
    opened.open(f"{site}/tour.html?open=encoder.self&block=2")
    assert opened.value(PROBLEMS) == ""
    assert opened.said() == []
    assert opened.value("document.querySelectorAll('.model-inside [data-head]').length") > 1
    opened.value("document.querySelector('[data-box=\"decoder.cross\"]').click()")
    wait_for(opened, "document.querySelector('[data-stack=decoder] .model-inside tbody') !== null")
    assert opened.value(PROBLEMS) == ""


def test_a_choice_that_is_not_recorded_shows_the_nearest_and_the_way_to_all(
    opened: Firefox | Chromium, site: str
) -> None:
    opened.open(f"{site}/builder.html?family=convolution&tokens=33&parts=99")
    words = opened.value(PROBLEMS)
    assert "the picture shows the nearest" in words
    assert "pip install" in words
    assert opened.value("document.querySelectorAll('main svg').length") > 0


def test_what_follows_from_formulas_is_computed_for_every_choice(
    opened: Firefox | Chromium, site: str
) -> None:
    opened.open(f"{site}/scale.html?width=63&keys=17")
    assert opened.value(PROBLEMS) == ""
    assert opened.said() == []
    assert opened.value("document.querySelectorAll('main svg').length") > 0
    opened.open(f"{site}/builder.html?width=96&encoder_layers=5&parts=99")
    assert opened.value(PROBLEMS) == ""


def test_an_embedded_page_is_the_picture_alone(opened: Firefox | Chromium, site: str) -> None:
    opened.open(f"{site}/scale.html?embed=1&width=1024")
    assert opened.value("document.querySelector('header').checkVisibility()") is False
    assert opened.value("document.querySelector('.tries a').search").startswith("?width=")
    assert "embed=1" in opened.value("document.querySelector('.tries a').search")


def test_an_address_keeps_what_is_chosen(
    opened: Firefox | Chromium, site: str, served: str
) -> None:
    # Chromium leaves the address of a file as it is.
    opened.open(f"{site if isinstance(opened, Firefox) else served}/scale.html")
    opened.value("""
      const slider = document.querySelector('input[type=range]');
      slider.value = slider.max;
      slider.dispatchEvent(new Event('input', { bubbles: true }));
    """)
    wait_for(opened, "location.search.includes('width=')")

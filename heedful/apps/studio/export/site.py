"""The whole course as a folder of files, which a browser opens without a server.

A page of the site is the studio's own shell beside one script of all its modules. `recorded.js`
answers their calls: with recorded answers, or with models that run in the page.
"""

from __future__ import annotations

import html
import json
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import heedful
from heedful.apps.quality.name_check import marks_names, translated_names
from heedful.apps.studio.app import STATIC, load_pages
from heedful.apps.studio.course import read_course
from heedful.apps.studio.export.recording import chosen_pages, defaults_of, packed, record
from heedful.apps.studio.export.script_bundle import bundle
from heedful.apps.studio.pages import Page
from heedful.apps.studio.pages.image_page import (
    EXAMPLES,
    SPOKEN,
    ImageRequest,
    image_pipeline,
    picture_of,
)
from heedful.apps.studio.workspace import Workspace, WorkspaceDirectory
from heedful.errors import ConfigError, UserError
from heedful.text.tokenizer_pair import WORDS_FILE

POLICY = (
    "default-src 'self'; img-src 'self' data:; worker-src blob:; object-src 'none'; "
    "base-uri 'none'; form-action 'none'"
)
CARDS = "The chapters of the course as cards, each with a small drawing."
"""Description of the picture of the start page."""
SUMMARY = "See a Transformer at work: one sentence from its text to the next word, in ten chapters."
PREVIEWS = Path(__file__).with_name("previews")
"""Pictures of the pages, for those who show a link with a picture; `tools/studio_pictures.py`."""
PREVIEW_SIZE = (900, 472)
SCRIPT = "studio.js"
WEIGHTS = "model.safetensors"
LARGEST = 12 << 20
"""Maximum size of a model's weights in bytes that go into a site, to run in the page."""
IN_PAGE = ("translator", "causal_lm", "encoder", "vision")
"""Kinds of models that run in the page."""
OTHERS_IN_PAGE = (
    "bach-chorales",
    "coin-player",
    "digit-pixels",
    "seasonal-series",
    "spoken-digits",
)
"""Models of records and sounds that run in the page: 1.7 MB, of the 30 that a site may have. The
samples of `room-actor` are recorded."""


def export_site(
    workspace: Workspace,
    folder: Path,
    pages: Collection[str] | None = None,
    tell: Callable[[str], None] = lambda text: None,
    address: str | None = None,
) -> dict[str, Any]:
    """Write the course with recorded answers, and return its numbers of pages, answers and bytes.

    Args:
        workspace: models and runs to show.
        folder: folder of the site, which is new, empty, or holds an earlier site.
        pages: names of pages; all if None.
        tell: function that gets a line for each page.
        address: address at which the folder will be served; None if it is not known.

    Raises:
        UserError: when the folder holds other files, or the address is none of a folder.
    """
    base = None if address is None else address_of_folder(address)
    if folder.exists() and any(folder.iterdir()) and not (folder / SCRIPT).is_file():
        raise UserError(
            "This folder holds other files", where=str(folder), remedy="Name a new or empty folder"
        )
    for name in ("answers", "models", "previews"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir(parents=True)
    # First, as it marks the folder as a site, also if the export is broken off.
    _write(folder / SCRIPT, bundle(STATIC, "shell.js"))
    load_pages()
    chosen = chosen_pages(pages)
    answers = 0
    for page in chosen:
        found = record(page, workspace)
        _write(folder / "answers" / f"{page.name}.js", found.script(page.name))
        answers += sum(map(len, found.keys.values()))
        tell(f"{page.title}: {sum(map(len, found.keys.values()))} answers")
    models = [place for place in workspace.places.values() if runs_in_page(place)]
    for place in models:
        _write(folder / "models" / f"{place.name}.js", model_script(place))
    _write(folder / "facts.js", facts_script(workspace, chosen, [each.name for each in models]))
    for name in ("style.css", "theme.js", "icon.svg"):
        shutil.copyfile(STATIC / name, folder / name)
    for name in ("", *(page.name for page in chosen)):
        shutil.copyfile(PREVIEWS / preview_of(name), folder / "previews" / preview_of(name))
    _write(folder / "index.html", shell(None, base))
    for page in chosen:
        _write(folder / f"{page.name}.html", shell(page, base))
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return {"pages": len(chosen) + 1, "answers": answers, "models": len(models), "bytes": size}


def preview_of(page: str) -> str:
    """Return the name of the picture of a page.

    Args:
        page: name of the page; empty for the start page.
    """
    return f"{page or 'index'}.png"


def address_of_folder(address: str) -> str:
    """Return the address of a folder on the web with a slash at its end.

    Args:
        address: address as a person types it.

    Raises:
        ConfigError: when it is no address of the web, or more than that of a folder.
    """
    parts = urlsplit(address)
    whole = parts.scheme in ("http", "https") and parts.netloc
    if not whole or parts.query or parts.fragment or parts.path.endswith(".html"):
        raise ConfigError(
            "This is not the address of a folder on the web",
            where=f"--address {address}",
            remedy="Write it whole, such as https://example.org/studio",
        )
    return address.rstrip("/") + "/"


def shell(page: Page | None, base: str | None = None) -> str:
    """Return the document of a page: that of the studio, with files beside it for addresses.

    Args:
        page: page of the studio; None for the start page.
        base: address of the site's folder, with a slash at its end; None if it is not known.
    """
    text = (STATIC / "index.html").read_text(encoding="utf-8")
    title = "Heedful studio" if page is None else f"{page.title} – Heedful studio"
    about = html.escape(SUMMARY if page is None else page.summary)
    picture = html.escape(CARDS if page is None else page.about.replace("`", ""))
    width, height = PREVIEW_SIZE
    name = page.name if page else ""
    # Networks want whole addresses. Some programs that show links understand a relative one, so it
    # stands there where nobody knows the whole one.
    preview = html.escape(f"{base or ''}previews/{preview_of(name)}")
    own = [] if base is None else [base + (f"{name}.html" if name else "")]
    head = [
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        f'<meta name="description" content="{about}">',
        '<meta property="og:type" content="website">',
        f'<meta property="og:title" content="{html.escape(title)}">',
        f'<meta property="og:description" content="{about}">',
        *(f'<meta property="og:url" content="{html.escape(each)}">' for each in own),
        f'<meta property="og:image" content="{preview}">',
        f'<meta property="og:image:width" content="{width}">',
        f'<meta property="og:image:height" content="{height}">',
        f'<meta property="og:image:alt" content="{picture}">',
        '<meta name="twitter:card" content="summary_large_image">',
    ]
    changes = {
        '<meta charset="utf-8">': '<meta charset="utf-8">\n    ' + "\n    ".join(head),
        "<title>Heedful studio</title>": f"<title>{html.escape(title)}</title>",
        '<script type="module" src="/static/shell.js"></script>': (
            f'<script defer src="facts.js"></script>\n    <script defer src="{SCRIPT}"></script>'
        ),
        'href="/"': 'href="index.html"',
        '"/static/': '"',
    }
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def facts_script(workspace: Workspace, pages: list[Page], models: list[str]) -> str:
    """Return the script that leaves what `recorded.js` needs: texts, places and defaults."""
    facts = {
        "version": heedful.__version__,
        "pages": [page.plain() for page in pages],
        "course": _course_of({page.name for page in pages}),
        "places": [place.plain() for place in workspace.places.values()],
    }
    site = {
        "facts": facts,
        "defaults": {page.name: defaults_of(page) for page in pages},
        "models": models,
        **{name: {} for name in ("answers", "files")},
    }
    return f"globalThis.heedfulSite = {json.dumps(site, ensure_ascii=False)};\n"


def _course_of(names: Collection[str]) -> dict[str, Any]:
    """Return the course with the chapters of some pages."""
    course = read_course().plain()
    chapters = [
        chapter | {"pages": [name for name in chapter["pages"] if name in names]}
        for chapter in course["chapters"]
    ]
    return course | {"chapters": [chapter for chapter in chapters if chapter["pages"]]}


def runs_in_page(place: WorkspaceDirectory) -> bool:
    """Return True if a model is small enough to run in a page, and of a kind that does."""
    weights = place.path / WEIGHTS
    small = weights.is_file() and weights.stat().st_size <= LARGEST
    runs = place.kind() in IN_PAGE or place.name in OTHERS_IN_PAGE
    return small and place.is_at_hand and runs


def model_script(place: WorkspaceDirectory) -> str:
    """Return the script that gives the files of a model to a page."""
    texts = {
        file.name: json.loads(file.read_text(encoding="utf-8"))
        for file in sorted(place.path.glob("*.json"))
    }
    if WORDS_FILE in texts:
        texts["names.json"] = words_that_are_no_names(place)
    if place.kind() in ("vision", "sounds"):
        texts["pictures.json"] = _example_pictures(place)
    content = json.dumps(texts, ensure_ascii=False, separators=(",", ":"))
    files = {
        "texts": packed(content.encode()),
        WEIGHTS: packed((place.path / WEIGHTS).read_bytes()),
    }
    return f"heedfulSite.files[{json.dumps(place.name)}] = {json.dumps(files)};\n"


def words_that_are_no_names(place: WorkspaceDirectory) -> list[str] | None:
    """Return capitalised words of a translator's source that are translated, such as countries.

    None where capitals mark no names, or the language is unknown.
    """
    card = place.card()
    source = card.languages[0] if card and card.languages else None
    return sorted(translated_names(source)) if source and marks_names(source) else None


def _example_pictures(place: WorkspaceDirectory) -> dict[str, Any]:
    """Return the examples of a model of pictures or sounds by name, in grey and in its size."""
    pipeline = image_pipeline(place.name, Workspace([place.path]))
    names = EXAMPLES if place.kind() == "vision" else SPOKEN
    return {
        name: pipeline.squares(
            [picture_of(ImageRequest(model=place.name, example=name), pipeline)]
        )[0, 0].tolist()
        for name in names
    }


def _write(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")

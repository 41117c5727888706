"""The readers of formats that are a single text."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.html_text import read_html
from heedful.apps.documents.markdown.markdown_text import read_markdown
from heedful.apps.documents.passage import Passage
from heedful.apps.documents.plain_text import read_plain_text
from heedful.apps.documents.string_catalogues import CATALOGUES
from heedful.apps.documents.subtitles import read_srt, read_vtt
from heedful.apps.documents.table_cells import read_csv, read_tsv

Reader = Callable[[str, DocumentSettings, str], Iterator[Passage]]
"""Function that finds the passages of a text from the text, settings and the document's name."""

READERS: dict[str, Reader] = {
    "text": read_plain_text,
    "html": read_html,
    "markdown": read_markdown,
    "srt": read_srt,
    "vtt": read_vtt,
    "csv": read_csv,
    "tsv": read_tsv,
    **CATALOGUES,
}

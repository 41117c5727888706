"""The readers of formats that are a single text."""

from __future__ import annotations

from heedful.apps.documents.apple_strings import read_strings, read_xcstrings
from heedful.apps.documents.gettext_catalogue import read_po
from heedful.apps.documents.html_text import read_html
from heedful.apps.documents.json_strings import read_json
from heedful.apps.documents.markdown.markdown_text import read_markdown
from heedful.apps.documents.passage import Reader
from heedful.apps.documents.plain_text import read_plain_text
from heedful.apps.documents.subtitles import read_srt, read_vtt
from heedful.apps.documents.table_cells import read_csv, read_tsv
from heedful.apps.documents.xliff import read_xliff
from heedful.apps.documents.xml_strings import read_android, read_resx, read_tbx, read_tmx
from heedful.apps.documents.yaml_strings import read_yaml

READERS: dict[str, Reader] = {
    "text": read_plain_text,
    "html": read_html,
    "markdown": read_markdown,
    "srt": read_srt,
    "vtt": read_vtt,
    "csv": read_csv,
    "tsv": read_tsv,
    "po": read_po,
    "xliff": read_xliff,
    "json": read_json,
    "yaml": read_yaml,
    "android": read_android,
    "resx": read_resx,
    "strings": read_strings,
    "xcstrings": read_xcstrings,
    "tmx": read_tmx,
    "tbx": read_tbx,
}

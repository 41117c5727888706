"""The readers of catalogues of strings, with keys or sources beside their texts."""

from __future__ import annotations

from heedful.apps.documents.apple_strings import read_strings, read_xcstrings
from heedful.apps.documents.gettext_catalogue import read_po
from heedful.apps.documents.json_strings import read_json
from heedful.apps.documents.xliff import read_xliff
from heedful.apps.documents.xml_strings import read_android, read_resx, read_tbx, read_tmx
from heedful.apps.documents.yaml_strings import read_yaml

CATALOGUES = {
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

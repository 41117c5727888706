"""Translation memories (TMX 1.4), read as lines of source, tab and target."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.parsers import expat

from heedful.data.text_file import TextFile

_READ = 1 << 16
# Elements of a segment with native codes of the tool that wrote the memory, which are not text.
_CODES = frozenset(("bpt", "ept", "it", "ph", "ut"))


class MemoryFile(TextFile):
    """The units of a translation memory in two languages, as lines of source, tab, target.

    A unit without both languages is a line of one field. Tabs and line breaks become spaces.

    Args:
        path: path of the file, plain or gzip.
        languages: codes of source and target, such as en and de-DE; if None, those of the first
            unit.

    Raises:
        DataError: when the file is missing or unreadable.
    """

    def __init__(self, path: str | Path, languages: Sequence[str] | None = None) -> None:
        super().__init__(path)
        self.languages = languages

    def raw_lines(self) -> Iterator[bytes]:
        """Yield the units as lines; `lines` is the number of the last one.

        Raises:
            DataError: when gzip is damaged, the file is no XML or declares entities, or a unit has
                more than two languages and none are named.
        """
        units = _Units()
        with self.opened() as content:
            try:
                while block := content.read(_READ):
                    units.parser.Parse(block, False)
                    yield from self._lines(units)
                units.parser.Parse(b"", True)
            except (expat.ExpatError, EOFError, zlib.error, OSError, ValueError) as error:
                raise self._wrong(
                    f"Cannot be read past unit {self.lines}: {error}",
                    "Give a translation memory in TMX, without entities of its own",
                ) from None
        yield from self._lines(units)

    def _lines(self, units: _Units) -> Iterator[bytes]:
        done, units.done = units.done, []
        for unit in done:
            self.lines += 1
            if self.languages is None and len(unit) > 1:
                if len(unit) > 2:
                    raise self._wrong(
                        f"A unit has the languages {', '.join(unit)}",
                        "Name two of them, such as: --languages en de",
                    )
                self.languages = tuple(unit)
            texts = [_text_in(unit, language) for language in self.languages or ()]
            yield "\t".join(each for each in texts if each is not None).encode() + b"\n"


def _text_in(unit: dict[str, str], language: str) -> str | None:
    """Return the text of a language; en also matches en-US, and en-US matches en."""
    if language in unit:
        return unit[language]
    wanted = language.lower().replace("_", "-").split("-")
    for code, text in unit.items():
        subtags = code.lower().replace("_", "-").split("-")
        if subtags[: len(wanted)] == wanted or wanted[: len(subtags)] == subtags:
            return text
    return None


class _Units:
    """A parser of translation memories; each unit is a mapping from languages to texts."""

    def __init__(self) -> None:
        self.done: list[dict[str, str]] = []
        self.parser = expat.ParserCreate(namespace_separator=None)
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        # An entity may grow to gigabytes; TMX needs none.
        self.parser.EntityDeclHandler = self._refuse
        self._unit: dict[str, str] = {}
        self._language = ""
        self._pieces: list[str] | None = None
        self._codes = 0

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name == "tu":
            self._unit = {}
        elif name == "tuv":
            self._language = attributes.get("xml:lang") or attributes.get("lang") or ""
        elif name == "seg":
            self._pieces = []
        self._codes += name in _CODES

    def _end(self, name: str) -> None:
        self._codes -= name in _CODES
        if name == "seg" and self._pieces is not None:
            self._unit[self._language] = " ".join("".join(self._pieces).split())
            self._pieces = None
        elif name == "tu":
            self.done.append(self._unit)

    def _text(self, text: str) -> None:
        if self._pieces is not None and not self._codes:
            self._pieces.append(text)

    def _refuse(self, *_: object) -> None:
        raise ValueError("it declares entities")

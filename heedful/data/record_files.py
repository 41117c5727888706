"""Records of token sequences from files: lines of JSON, NumPy arrays, images, music.

A record has a value for each of its fields (`heedful.text.token_fields`). A reader of a corpus
yields records as lines of JSON, so that they are cached, hashed and shown like texts. Readers from
outside the package are registered by `heedful.register`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from heedful.data.array_files import VALUES, load_arrays
from heedful.data.corpus_file import CorpusFile, single_file
from heedful.data.corpus_spec import CorpusSpec, ImageSpec, RecordSpec
from heedful.data.idx_files import is_idx, read_images
from heedful.data.image_files import FolderReader, IdxReader, fit_grey
from heedful.data.midi_files import MidiRecords
from heedful.data.series_files import SeriesRecords
from heedful.data.sound_files import SoundRecords
from heedful.data.text_corpus import CorpusDocument, numbered
from heedful.data.text_file import file_form, parse_json
from heedful.errors import DataError

_REMEDY = 'Each line must be an object like {"pixels": [0, 3, 1]}, or a list for a single field'


@dataclass(frozen=True)
class RecordReader(CorpusFile):
    """The records of one file, as lines of JSON.

    Args:
        path: file of lines of JSON or another table, or a NumPy array of a record a row (.npy), or
            several such arrays by the names of fields (.npz).
    """

    def __iter__(self) -> Iterator[CorpusDocument]:
        """Yield the records.

        Raises:
            DataError: when the file or a line of it cannot be read.
        """
        return self.at_least_one(self._read(), "record")

    def records(self) -> Iterator[tuple[str, Any]]:
        """Yield the records with their places, as "file:line"."""
        for line, text in self:
            where = f"{self.path}:{line}"
            record = parse_json(text, where, _REMEDY)
            if not isinstance(record, dict | list):
                raise DataError(
                    "The line is neither an object nor a list", where=where, remedy=_REMEDY
                )
            yield where, record if isinstance(record, dict) else {VALUES: record}

    def content_hash(self) -> str:
        """Return the SHA-256, in hexadecimal, of the file and of the way it is read."""
        return self.hash_with("records")

    def _read(self) -> Iterator[CorpusDocument]:
        if file_form(self.path) in (".npy", ".npz"):
            yield from _array_records(self.path)
            return
        for number, _, line in self.filled_lines():
            yield CorpusDocument(number, line)


def _array_records(path: Path) -> Iterator[CorpusDocument]:
    arrays = load_arrays(path, "iu", "whole numbers")
    sizes = {name: len(array) for name, array in arrays.items()}
    if len(set(sizes.values())) > 1:
        raise DataError(
            "The arrays have different numbers of records: "
            + ", ".join(f"{name} {size:,}" for name, size in sizes.items()),
            where=str(path),
            remedy="Give every field a row for each record",
        )
    for number in range(next(iter(sizes.values()), 0)):
        record = {name: array[number].tolist() for name, array in arrays.items()}
        yield CorpusDocument(number + 1, json.dumps(record))


@dataclass(frozen=True)
class ImageRecords:
    """Images as records of their label and their pixels, of grey levels.

    Args:
        path: IDX file of images, beside which that of labels may lie, or a folder with a folder of
            images for each label.
        spec: levels and size.
    """

    path: Path
    spec: RecordSpec

    def __iter__(self) -> Iterator[CorpusDocument]:
        """Yield the images.

        Raises:
            DataError: when an image cannot be read, or has another size.
        """
        return numbered(self.records())

    def records(self) -> Iterator[tuple[str, Any]]:
        """Yield the images with their places."""
        for number, (label, pixels) in enumerate(self._images(), start=1):
            levels = pixels.astype(np.int64) * self.spec.levels // 256
            named = {} if label is None else {"label": label}
            yield f"{self.path}, image {number}", {**named, "pixels": levels.tolist()}

    def content_hash(self) -> str:
        """Return the SHA-256 of the files and the settings that change the pixels."""
        reader, plain = self._labelled(), CorpusFile(self.path)
        way = f"images {self.spec.size}"
        hashed = reader.content_hash() if reader else plain.hash_with(way)
        return f"{hashed} {self.spec.levels}"

    @property
    def _images_asked(self) -> ImageSpec:
        return ImageSpec(size=self.spec.size, channels=1)

    def _labelled(self) -> IdxReader | FolderReader | None:
        images = self._images_asked
        if self.path.is_dir():
            return FolderReader.of(self.path, images)
        # As MNIST is distributed: train-images-idx3-ubyte and train-labels-idx1-ubyte.
        name = self.path.name.replace("images", "labels").replace("idx3", "idx1")
        labels = self.path.with_name(name)
        found = name != self.path.name and labels.is_file()
        return IdxReader(self.path, labels, images) if found else None

    def _images(self) -> Iterator[tuple[str | None, Any]]:
        labelled = self._labelled()
        if labelled is not None:
            yield from ((label, pixels[0]) for pixels, label in labelled)
        elif is_idx(self.path):
            for number, pixels in enumerate(read_images(self.path), start=1):
                where = f"{self.path}, image {number}"
                yield None, fit_grey(pixels, self._images_asked, where)[0]
        else:
            raise DataError(
                "This is neither an IDX file of images nor a folder of them",
                where=str(self.path),
                remedy="Check the path, or leave out --tokens.reader",
            )


@dataclass(frozen=True)
class RegisteredRecords:
    """A reader of records from outside the package, for `heedful.register`.

    Args:
        name: name in settings.
        make: function of a path and the settings that returns a reader, such as `ImageRecords`.
    """

    family: ClassVar[str] = "record reader"
    name: str
    make: Callable[[Path, RecordSpec], Any]

    def known_as(self) -> str:
        """Return its name in settings."""
        return self.name


READERS: Mapping[str, Callable[[Path, RecordSpec], Any]] = {
    "records": lambda path, spec: RecordReader(path),
    "images": ImageRecords,
    "midi": MidiRecords,
    "series": SeriesRecords,
    "sounds": SoundRecords,
}
"""Readers of records by their names in settings."""


def record_reader(corpus: CorpusSpec, spec: RecordSpec) -> Any:
    """Make the reader of a corpus of records.

    Args:
        corpus: corpus of one file or folder.
        spec: name of the reader, and its settings.

    Raises:
        DataError: when the corpus is one of pairs.
        ConfigError: when there is no such reader.
    """
    path = single_file(corpus, "Token sequences stand in one file, not in a pair of files")
    if spec.reader in READERS:
        return READERS[spec.reader](path, spec)
    from heedful.registry import find  # few runs have a reader from outside the package

    return find("record reader", spec.reader, tuple(READERS)).make(path, spec)

"""Labelled images out of files: IDX files (MNIST's format), or a folder of pictures a label."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, cast

import numpy as np

from heedful.data.corpus_spec import CorpusSpec, ImageSpec
from heedful.data.image_files import (
    Pixels,
    from_array,
    image_files,
    pixels_of,
    read_image,
    to_square,
)
from heedful.durable import open_regular
from heedful.errors import DataError

_REMEDY = "Give IDX files as IMAGES LABELS, or a folder with a folder of pictures for each label"

_GZIP = b"\x1f\x8b"
_UNSIGNED_BYTE = 0x08
_AT_ONCE = 1 << 20
_CONTENTS = {1: "labels", 3: "images"}
"""The content of a file of unsigned bytes with so many dimensions."""


class ImageExample(NamedTuple):
    """An image [C, h, w] uint8 and its label."""

    pixels: Pixels
    label: str


class ImageReader(Protocol):
    """The images of one corpus; reads them anew each time."""

    def __iter__(self) -> Iterator[ImageExample]:
        """The images with their labels.

        Raises:
            DataError: naming the file that is no image.
        """
        ...

    def name(self, number: int) -> str:
        """The name of an image, by its number from 0, for messages."""
        ...

    def content_hash(self) -> str:
        """SHA-256, in hexadecimal, of the content and of how it is read."""
        ...


@dataclass(frozen=True)
class IdxReader:
    """The images of an IDX file with the labels of another.

    Args:
        images: the file of images.
        labels: the file of labels.
        spec: size and channels.
    """

    images: Path
    labels: Path
    spec: ImageSpec

    def __iter__(self) -> Iterator[ImageExample]:
        """See `ImageReader`."""
        pixels, labels = read_labelled(self.images, self.labels)
        channels = self.spec.channels or 1
        size = self.spec.size
        for number, (image, label) in enumerate(zip(pixels, labels.tolist(), strict=True)):
            if channels == 1 and (size is None or image.shape == (size, size)):
                yield ImageExample(image[None], str(label))
                continue
            where = self.name(number)
            picture = from_array(image, channels, where)
            fitted = pixels_of(picture) if size is None else _resized(picture, size, where)
            yield ImageExample(fitted, str(label))

    def name(self, number: int) -> str:
        """See `ImageReader`."""
        return f"{self.images}, image {number + 1}"

    def content_hash(self) -> str:
        """See `ImageReader`."""
        return _hash([("images", self.images), ("labels", self.labels)], self.spec)


@dataclass(frozen=True)
class FolderReader:
    """The pictures of a folder in which each label has a folder.

    Args:
        folder: the one above the labels'.
        files: the pictures.
        spec: size and channels.
    """

    folder: Path
    files: tuple[Path, ...]
    spec: ImageSpec

    @classmethod
    def of(cls, folder: Path, spec: ImageSpec) -> FolderReader:
        """The reader of a folder, once what is in it has been looked at.

        Raises:
            DataError: naming what is neither a label's folder nor a picture in one.
        """
        labels = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
        files: list[Path] = []
        for label in labels:
            if not label.is_dir():
                raise DataError("This file is in no label's folder", where=str(label))
            found = image_files(label)
            others = {p for p in label.rglob("*") if p.is_file() and not p.name.startswith(".")}
            if others := others - set(found):
                raise DataError(
                    "This is no picture of the label in whose folder it is",
                    where=str(min(others)),
                    remedy="Move it somewhere else, or save it as PNG or JPEG",
                )
            files += found
        if not files:
            raise DataError("The folder is empty", where=str(folder), remedy=_REMEDY)
        return cls(folder, tuple(files), spec)

    def __iter__(self) -> Iterator[ImageExample]:
        """See `ImageReader`."""
        size = self.spec.size
        for path in self.files:
            picture = read_image(path, self.spec.channels or 3)
            pixels = pixels_of(picture) if size is None else _resized(picture, size, str(path))
            yield ImageExample(pixels, path.relative_to(self.folder).parts[0])

    def name(self, number: int) -> str:
        """See `ImageReader`."""
        return str(self.files[number])

    def content_hash(self) -> str:
        """See `ImageReader`."""
        named = [(path.relative_to(self.folder).as_posix(), path) for path in self.files]
        return _hash(named, self.spec)


def image_reader(corpus: CorpusSpec, spec: ImageSpec) -> ImageReader:
    """The reader of a corpus of labelled images.

    Args:
        corpus: IDX files of images and labels as source and target, or a folder as file.
        spec: size and channels.

    Raises:
        DataError: when it is neither.
    """
    if corpus.source is not None and corpus.target is not None:
        return IdxReader(Path(corpus.source), Path(corpus.target), spec)
    folder = Path(corpus.file or "")
    if not folder.is_dir():
        what = "These are images without labels" if is_idx(folder) else "This is no such folder"
        raise DataError(what, where=str(folder), remedy=_REMEDY)
    return FolderReader.of(folder, spec)


def _resized(picture: Any, size: int, where: str) -> Pixels:
    return to_square(picture, size, "bilinear", where)


def _hash(files: Sequence[tuple[str, Path]], spec: ImageSpec) -> str:
    """Of names and contents, and of how they are read.

    Raises:
        DataError: when a file is missing or unreadable.
    """
    whole = hashlib.sha256(f"{spec.size} {spec.channels}".encode())
    for name, path in files:
        try:
            with open_regular(path) as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise DataError(
                f"Cannot be read: {error.strerror or error}",
                where=str(path),
                remedy="Check the path",
            ) from None
        whole.update(f"\n{content} {name}".encode())
    return whole.hexdigest()


def is_idx(path: Path) -> bool:
    """True for a file that begins as an IDX file of images or labels does, plain or gzip."""
    try:
        with _opened(path) as file:
            head = file.read(4)
    except (OSError, EOFError, zlib.error):
        return False
    return head[:3] == bytes([0, 0, _UNSIGNED_BYTE]) and head[3:] in (b"\1", b"\3")


def read_images(path: Path) -> Pixels:
    """Grey images [N, h, w] of an IDX file, plain or gzip.

    Raises:
        DataError: when it is missing, cut short, too long, or something else.
    """
    return _read(path, 3)


def read_labels(path: Path) -> Pixels:
    """Labels [N] of an IDX file, plain or gzip.

    Raises:
        DataError: when it is missing, cut short, too long, or something else.
    """
    return _read(path, 1)


def read_labelled(images: Path, labels: Path) -> tuple[Pixels, Pixels]:
    """Images [N, h, w] and the label [N] of each.

    Raises:
        DataError: when a file cannot be read, or they hold different numbers of items.
    """
    pixels, numbers = read_images(images), read_labels(labels)
    if len(pixels) != len(numbers):
        raise DataError(
            f"There are {len(pixels):,} images, but {len(numbers):,} labels in {labels}",
            where=str(images),
            remedy="Give images and labels that belong together",
        )
    return pixels, numbers


def _read(path: Path, dimensions: int) -> Pixels:
    where = str(path)
    try:
        with _opened(path) as file:
            shape = _shape(file.read(4 + 4 * dimensions), dimensions, where)
            count = int(np.prod(shape, dtype=object))
            content = b"".join(_pieces(file, count + 1))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(f"The gzip file is damaged or cut short ({error})", where) from None
    except OSError as error:
        raise DataError(
            f"Cannot be read: {error.strerror or error}", where=where, remedy="Check the path"
        ) from None
    if len(content) != count:
        more = "more" if len(content) > count else f"{len(content):,}"
        sizes = " × ".join(map(str, shape))
        raise _damaged(
            f"It says that it holds {sizes} = {count:,} bytes after its head, and holds {more}",
            where,
        )
    if count == 0:
        raise DataError("It holds nothing", where=where, remedy="Check that it is the right file")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _opened(path: Path) -> IO[bytes]:
    """The content of a file, plain or gzip, whatever its name."""
    with open_regular(path) as file:
        zipped = file.read(2) == _GZIP
    return cast(IO[bytes], gzip.open(path)) if zipped else path.open("rb")


def _pieces(file: IO[bytes], limit: int) -> Iterator[bytes]:
    """The rest of a file in pieces, up to a limit, which a damaged file may claim to be huge."""
    while limit and (piece := file.read(min(limit, _AT_ONCE))):
        limit -= len(piece)
        yield piece


def _shape(head: bytes, dimensions: int, where: str) -> tuple[int, ...]:
    wanted = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if head[:4] == wanted and len(head) == 4 + 4 * dimensions:
        return tuple(int(size) for size in np.frombuffer(head[4:], ">u4"))
    if head[:4] == wanted:
        raise _damaged("It ends before its sizes do", where)
    name = _CONTENTS[dimensions]
    other = next((what for n, what in _CONTENTS.items() if head[:4] == wanted[:3] + bytes([n])), "")
    raise DataError(
        f"It is an IDX file of {other}, not of {name}"
        if other
        else f"It is no IDX file of {name}: it begins with the bytes {head[:4].hex(' ')}, "
        f"not {wanted.hex(' ')}",
        where=where,
        remedy="Give IDX files as images, then labels: IMAGES LABELS",
    )


def _damaged(what: str, where: str) -> DataError:
    return DataError(what, where=where, remedy="Copy the file again")

"""Where labelled images come from: IDX files, or a folder of pictures for each label."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from heedful.data.idx import is_idx, read_labelled
from heedful.data.image_files import (
    Pixels,
    from_array,
    image_files,
    pixels_of,
    read_image,
    to_square,
)
from heedful.data.image_spec import ImageSpec
from heedful.data.spec import CorpusSpec
from heedful.errors import DataError

_REMEDY = "Give IDX files as IMAGES LABELS, or a folder with a folder of pictures for each label"


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
        """What to call an image, from 0, in messages."""
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
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise DataError(
                f"Cannot be read: {error.strerror or error}",
                where=str(path),
                remedy="Check the path",
            ) from None
        whole.update(f"\n{content} {name}".encode())
    return whole.hexdigest()

"""IDX files, the format of MNIST: a few bytes that say what follows, then plain numbers."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import numpy as np
import numpy.typing as npt

from heedful.errors import DataError

Bytes = npt.NDArray[np.uint8]

_GZIP = b"\x1f\x8b"
_UNSIGNED_BYTE = 0x08
_AT_ONCE = 1 << 20
_CONTENTS = {1: "labels", 3: "images"}
"""What a file of unsigned bytes with so many dimensions holds."""


def is_idx(path: Path) -> bool:
    """Whether a file begins as an IDX file of images or labels does, plain or gzip."""
    try:
        with _opened(path) as file:
            head = file.read(4)
    except (OSError, EOFError, zlib.error):
        return False
    return head[:3] == bytes([0, 0, _UNSIGNED_BYTE]) and head[3:] in (b"\1", b"\3")


def read_images(path: Path) -> Bytes:
    """Grey images [N, h, w] of an IDX file, plain or gzip.

    Raises:
        DataError: when it is missing, cut short, too long, or something else.
    """
    return _read(path, 3)


def read_labels(path: Path) -> Bytes:
    """Labels [N] of an IDX file, plain or gzip.

    Raises:
        DataError: when it is missing, cut short, too long, or something else.
    """
    return _read(path, 1)


def read_labelled(images: Path, labels: Path) -> tuple[Bytes, Bytes]:
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


def _read(path: Path, dimensions: int) -> Bytes:
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
    with path.open("rb") as file:
        zipped = file.read(2) == _GZIP
    return cast(IO[bytes], gzip.open(path)) if zipped else path.open("rb")


def _pieces(file: IO[bytes], limit: int) -> Iterator[bytes]:
    """What there is, up to a limit that may be any number a damaged file claims."""
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

"""Images and labels in IDX files, MNIST's format, plain or gzip."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import numpy as np
import numpy.typing as npt

from heedful.durable import open_regular
from heedful.errors import DataError

Pixels = npt.NDArray[np.uint8]

_GZIP = b"\x1f\x8b"
_UNSIGNED_BYTE = 0x08  # the third byte of an IDX file: its type of element
_AT_ONCE = 1 << 20
_CONTENTS = {1: "labels", 3: "images"}
"""Content of an IDX file of unsigned bytes by its number of dimensions."""


def is_idx(path: Path) -> bool:
    """Return True if a file, plain or gzip, has the header of an IDX file of images or labels."""
    try:
        with _opened(path) as file:
            head = file.read(4)
    except (OSError, EOFError, zlib.error):
        return False
    return head[:3] == bytes([0, 0, _UNSIGNED_BYTE]) and head[3:] in (b"\1", b"\3")


def read_images(path: Path) -> Pixels:
    """Read the grey images [N, h, w] of an IDX file, plain or gzip.

    Raises:
        DataError: when the file is missing, cut short, too long, or no IDX file of images.
    """
    return _read(path, 3)


def read_labelled(images: Path, labels: Path) -> tuple[Pixels, Pixels]:
    """Read images [N, h, w] and the label [N] of each.

    Raises:
        DataError: when a file cannot be read, or the files hold different numbers of items.
    """
    pixels, numbers = _read(images, 3), _read(labels, 1)
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
            # Python's integers: the sizes of a damaged file may overflow 64 bits.
            count = int(np.prod(shape, dtype=object))
            content = b"".join(_pieces(file, count + 1))  # one more shows a longer file
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
    """Open a file, plain or gzip, whatever its name."""
    with open_regular(path) as file:
        zipped = file.read(2) == _GZIP
    return cast("IO[bytes]", gzip.open(path)) if zipped else path.open("rb")


def _pieces(file: IO[bytes], limit: int) -> Iterator[bytes]:
    """Yield the rest of a file in pieces, up to `limit` bytes.

    A damaged file may claim to be huge, so no buffer of `limit` bytes is made.
    """
    while limit and (piece := file.read(min(limit, _AT_ONCE))):
        limit -= len(piece)
        yield piece


def _shape(head: bytes, dimensions: int, where: str) -> tuple[int, ...]:
    wanted = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if head[:4] == wanted and len(head) == 4 + 4 * dimensions:
        return tuple(int(size) for size in np.frombuffer(head[4:], ">u4"))  # big-endian
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

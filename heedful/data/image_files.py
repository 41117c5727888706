"""Images from files: PNG and JPEG, folders with a folder for each label, IDX (MNIST's format).

A WAV file is read as the picture of its spectrogram. PNG and JPEG need Pillow, which is loaded when
the first is read.
"""

from __future__ import annotations

import gzip
import hashlib
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from heedful.config import Resampling
from heedful.data.corpus_spec import CorpusSpec, ImageSpec
from heedful.data.sound_files import SOUND_SUFFIXES, spectrogram
from heedful.durable import open_regular
from heedful.errors import ConfigError, DataError

if TYPE_CHECKING:
    from PIL.Image import Image


Pixels = npt.NDArray[np.uint8]

SUFFIXES = (".png", ".jpg", ".jpeg", *SOUND_SUFFIXES)
_FORMATS = ("PNG", "JPEG")
_MODES = {1: "L", 3: "RGB"}
_DEEP = ("I", "F")
"""First letters of Pillow's modes with more than 8 bits a channel: I, I;16, F."""


def read_image(source: Path | BinaryIO, channels: int, where: str | None = None) -> Image:
    """Read an image in grey or colour, rotated as its EXIF orientation says.

    Transparency is dropped: transparent pixels show their stored colour. The picture of a sound is
    its spectrogram.

    Args:
        source: path of a PNG, JPEG or WAV file, or a stream of its bytes.
        channels: 1 for grey, 3 for colour.
        where: name of the image for the error message; its path if unset.

    Raises:
        DataError: when the file is missing, none of PNG, JPEG and WAV, damaged, has more pixels
            than Pillow opens without risk, or more than 8 bits a channel; see `spectrogram`.
        ConfigError: when Pillow is not installed.
    """
    library = _pillow()
    from PIL import ImageOps

    name = str(source) if where is None else where
    if _is_sound(source):
        return from_array(spectrogram(source, name), channels, name)
    try:
        with warnings.catch_warnings():
            # Up to twice its limit Pillow only warns, although memory may run out.
            warnings.simplefilter("error", library.DecompressionBombWarning)
            # Only these decoders are tried; Pillow has dozens more, some rarely maintained.
            with library.open(source, formats=_FORMATS) as image:
                if image.mode.startswith(_DEEP):  # `convert` would clip them to 8 bits silently
                    raise DataError(
                        "Its pixels have more than 8 bits a channel",
                        where=name,
                        remedy="Save it with 8 bits a channel",
                    )
                return ImageOps.exif_transpose(image).convert(_MODES[channels])
    except (library.DecompressionBombWarning, library.DecompressionBombError):
        raise DataError(
            f"It has more than the {library.MAX_IMAGE_PIXELS:,} pixels that are safe to open",
            where=name,
            remedy="Make it smaller, or leave it out",
        ) from None
    except library.UnidentifiedImageError:
        raise DataError(
            "It is no PNG or JPEG picture", where=name, remedy="Save it as PNG or leave it out"
        ) from None
    except FileNotFoundError:
        raise DataError("No such file", where=name, remedy="Check the path") from None
    except (OSError, SyntaxError, ValueError) as error:  # Pillow raises all three on damaged files
        raise DataError(
            f"The picture cannot be read: {error}", where=name, remedy="Save it again"
        ) from None


def _is_sound(source: Path | BinaryIO) -> bool:
    """Return True for a path that ends in .wav, or a stream that begins as a WAV file."""
    if isinstance(source, Path):
        return source.suffix.lower() in SOUND_SUFFIXES
    head = source.read(12)
    source.seek(0)
    return head[:4] == b"RIFF" and head[8:] == b"WAVE"


def to_square(image: Image, side: int, resample: Resampling | None, where: str) -> Pixels:
    """Return the pixels of a picture, resized to a square if it has another size.

    Args:
        image: image in grey or colour.
        side: height and width of the result.
        resample: interpolation; None refuses other sizes.
        where: name of the image for the error message.

    Returns:
        Pixels [C, side, side] uint8.

    Raises:
        DataError: when the size differs and `resample` is None.
    """
    if image.size != (side, side):  # Pillow's sizes are (width, height)
        if resample is None:
            raise wrong_size(image.size[1], image.size[0], side, where)
        image = image.resize((side, side), getattr(_pillow().Resampling, resample.upper()))
    return pixels_of(image)


def pixels_of(image: Image) -> Pixels:
    """Return the pixels of an image in grey or colour [C, h, w] uint8."""
    array = np.asarray(image, np.uint8)
    return array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1))


def as_pixels(image: object, where: str) -> Pixels:
    """Return an image in memory as an array of bytes.

    Args:
        image: array, tensor or nested list of bytes.
        where: name of the image in errors.

    Raises:
        DataError: when it holds no bytes.
    """
    if getattr(image, "mode", "") == "P":  # numbers of a palette, which are no colours
        image = cast("Image", image).convert("RGB")
    pixels = np.asarray(image)
    if isinstance(image, list) and pixels.dtype.kind == "i":
        fits = pixels.size and 0 <= pixels.min() <= pixels.max() <= 255
        pixels = pixels.astype(np.uint8) if fits else pixels
    # Floats between 0 and 1 would become black images without an error.
    if pixels.dtype != np.uint8:
        raise DataError(
            f"An image is a file or an array of bytes, and this is a {type(image).__name__} of "
            f"{pixels.dtype}",
            where=where,
            remedy="Convert its values to 0 … 255 of the type uint8",
        )
    return pixels


def from_array(pixels: Pixels, channels: int, where: str) -> Image:
    """Make an image in grey or colour from pixels.

    Args:
        pixels: grey pixels [h, w], or pixels [h, w, C] in RGB or RGBA, uint8.
        channels: 1 for grey, 3 for colour.
        where: name of the image in errors.

    Raises:
        DataError: when type or shape differ.
        ConfigError: when Pillow is not installed.
    """
    # Floats between 0 and 1 would become black images without an error.
    if pixels.dtype != np.uint8 or not (
        pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))
    ):
        raise DataError(
            f"An image is bytes of height × width, or height × width × 3, and these are "
            f"{pixels.dtype} of {' × '.join(map(str, pixels.shape))}",
            where=where,
        )
    image: Image = _pillow().fromarray(pixels).convert(_MODES[channels])
    return image


def wrong_size(height: int, width: int, side: int, where: str) -> DataError:
    """Return the error for an image whose size differs from that of the others."""
    return DataError(
        f"The image has {height} × {width} pixels (height × width), not {side} × {side}",
        where=where,
        remedy="Set images.size, to which all are then resized, or give images of one size",
    )


def image_files(folder: Path) -> list[Path]:
    """Return the images in a folder and its subfolders, sorted, without hidden files.

    Raises:
        DataError: when there is none.
    """
    # Sorted, since the order of a directory differs between file systems.
    result = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    )
    if not result:
        raise DataError(
            f"There is no picture or sound in the folder ({', '.join(SUFFIXES)})",
            where=str(folder),
            remedy="Check that it is the right one",
        )
    return result


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise ConfigError(
            "Reading and resizing pictures needs Pillow, which is not installed",
            where="PNG and JPEG files",
            remedy="Install it with: pip install 'heedful[images]'",
        ) from None
    return Image


_REMEDY = "Give IDX files as IMAGES LABELS, or a folder with a folder of pictures for each label"

_GZIP = b"\x1f\x8b"
_UNSIGNED_BYTE = 0x08  # the third byte of an IDX file: its type of element
_AT_ONCE = 1 << 20
_CONTENTS = {1: "labels", 3: "images"}
"""Content of an IDX file of unsigned bytes by its number of dimensions."""


class ImageExample(NamedTuple):
    """An image [C, h, w] uint8 and its label."""

    pixels: Pixels
    label: str


@dataclass(frozen=True)
class IdxReader:
    """The images of an IDX file with the labels of another.

    Args:
        images: path of the images.
        labels: path of the labels.
        spec: size and channels of the result.
    """

    images: Path
    labels: Path
    spec: ImageSpec

    def __iter__(self) -> Iterator[ImageExample]:
        pixels, labels = read_labelled(self.images, self.labels)
        channels = self.spec.channels or 1
        size = self.spec.size
        for number, (image, label) in enumerate(zip(pixels, labels.tolist(), strict=True)):
            # Grey images of the right size, MNIST's case, need no Pillow.
            if channels == 1 and (size is None or image.shape == (size, size)):
                yield ImageExample(image[None], str(label))
                continue
            where = self.name(number)
            picture = from_array(image, channels, where)
            fitted = _fitted(picture, size, where)
            yield ImageExample(fitted, str(label))

    def name(self, number: int) -> str:
        """Return the name of an image, given its number from 0, for messages."""
        return f"{self.images}, image {number + 1}"

    def content_hash(self) -> str:
        return _hash([("images", self.images), ("labels", self.labels)], self.spec)


@dataclass(frozen=True)
class FolderReader:
    """The images of a folder in which each label has a folder.

    Args:
        folder: parent of the labels' folders.
        files: paths of the images.
        spec: size and channels of the result.
    """

    folder: Path
    files: tuple[Path, ...]
    spec: ImageSpec

    @classmethod
    def of(cls, folder: Path, spec: ImageSpec) -> FolderReader:
        """Make the reader of a folder after checking its content.

        Raises:
            DataError: when something is neither a label's folder nor an image in one.
        """
        labels = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
        files: list[Path] = []
        for label in labels:
            if not label.is_dir():
                raise DataError("This file is in no label's folder", where=str(label))
            result = image_files(label)
            others = {p for p in label.rglob("*") if p.is_file() and not p.name.startswith(".")}
            # Refused, not skipped: an image in an unknown format would silently be missing.
            if others := others - set(result):
                raise DataError(
                    "This is no picture or sound of the label in whose folder it is",
                    where=str(min(others)),
                    remedy="Move it somewhere else, or save it as PNG, JPEG or WAV",
                )
            files += result
        if not files:
            raise DataError("The folder is empty", where=str(folder), remedy=_REMEDY)
        return cls(folder, tuple(files), spec)

    def __iter__(self) -> Iterator[ImageExample]:
        size = self.spec.size
        for path in self.files:
            picture = read_image(path, self.spec.channels or 3)
            # An image may lie deeper: the label is the folder right below the corpus.
            label = path.relative_to(self.folder).parts[0]
            yield ImageExample(_fitted(picture, size, str(path)), label)

    def name(self, number: int) -> str:
        """Return the name of an image, given its number from 0, for messages."""
        return str(self.files[number])

    def content_hash(self) -> str:
        named = [(path.relative_to(self.folder).as_posix(), path) for path in self.files]
        return _hash(named, self.spec)


ImageReader = IdxReader | FolderReader
"""The images of one corpus, read anew in every iteration."""


def image_reader(corpus: CorpusSpec, spec: ImageSpec) -> ImageReader:
    """Make the reader of a corpus of labelled images.

    Args:
        corpus: IDX files of images and labels as source and target, or a folder as file.
        spec: size and channels of the result.

    Raises:
        DataError: when the corpus is neither.
    """
    if corpus.source is not None and corpus.target is not None:
        return IdxReader(Path(corpus.source), Path(corpus.target), spec)
    folder = Path(corpus.file or "")
    if not folder.is_dir():
        what = "These are images without labels" if is_idx(folder) else "This is no such folder"
        raise DataError(what, where=str(folder), remedy=_REMEDY)
    return FolderReader.of(folder, spec)


def _fitted(picture: Image, size: int | None, where: str) -> Pixels:
    return pixels_of(picture) if size is None else to_square(picture, size, "bilinear", where)


def _hash(files: Sequence[tuple[str, Path]], spec: ImageSpec) -> str:
    """Return the SHA-256 of names, contents, size and channels.

    Raises:
        DataError: when a file is missing or unreadable.
    """
    # Names count: an image that moves to another label's folder changes the corpus.
    # Settings that change the stored pixels are part of the key of the cache.
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

"""Images from files: PNG and JPEG, folders with a folder for each label, IDX, lines of JSON.

A WAV file is read as the picture of its spectrogram. PNG and JPEG need Pillow, which is loaded when
the first is read.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

import numpy as np

from heedful.config import Resampling
from heedful.data.corpus_file import CorpusFile
from heedful.data.corpus_spec import CorpusSpec, ImageSpec
from heedful.data.idx_files import Pixels, is_idx, read_images, read_labelled
from heedful.data.sound_files import SOUND_SUFFIXES, spectrogram
from heedful.data.text_file import parse_json
from heedful.durable import open_regular, whole_folder
from heedful.errors import ConfigError, DataError

if TYPE_CHECKING:
    from PIL.Image import Image


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


def to_square(
    image: Image,
    side: int,
    resample: Resampling | None,
    where: str,
    shorter_side: int | None = None,
) -> Pixels:
    """Return the pixels of a picture, resized to a square if it has another size.

    Args:
        image: image in grey or colour.
        side: height and width of the result.
        resample: interpolation; None refuses other sizes.
        where: name of the image for the error message.
        shorter_side: length to which the shorter side is resized, before a square is cut out of
            the middle; the whole picture is resized to a square if None.

    Returns:
        Pixels [C, side, side] uint8.

    Raises:
        DataError: when the size differs and `resample` is None.
    """
    width, height = image.size
    size = (side, side)
    if shorter_side is not None:
        # Rounded down, as torchvision does.
        shorter = min(image.size)
        size = (shorter_side * width // shorter, shorter_side * height // shorter)
    if image.size != size:
        if resample is None:
            raise wrong_size(height, width, side, where)
        image = image.resize(size, getattr(_pillow().Resampling, resample.upper()))
    left, top = (size[0] - side) // 2, (size[1] - side) // 2
    return pixels_of(image.crop((left, top, left + side, top + side)))


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


def write_pictures(out: Path, pictures: Iterable[Pixels]) -> int:
    """Write pictures as 1.png, 2.png and so on into a new folder; return their number.

    Args:
        out: folder, which appears when all are written.
        pictures: grey pixels [h, w] or colours [h, w, 3].

    Raises:
        ConfigError: when Pillow is not installed.
    """
    count, library = 0, _pillow()
    with whole_folder(out) as folder:
        for count, pixels in enumerate(pictures, start=1):
            library.fromarray(pixels).save(folder / f"{count}.png")
    return count


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


def named_images(what: Sequence[str]) -> Iterator[tuple[str, Path | Pixels]]:
    """Yield the images of files, IDX files and folders by their names: paths, or pixels [h, w].

    Raises:
        DataError: when a folder has no image, or an IDX file is damaged.
    """
    for word in what:
        path = Path(word)
        if path.is_dir():
            yield from ((str(file), file) for file in image_files(path))
        elif is_idx(path):
            for number, pixels in enumerate(read_images(path), start=1):
                yield f"{path}:{number}", pixels
        else:
            yield word, path


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


_REMEDY = (
    "Give IDX files as IMAGES LABELS, a folder with a folder of pictures for each label, or lines "
    "of JSON with image and caption"
)


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
        for number, (image, label) in enumerate(zip(pixels, labels.tolist(), strict=True)):
            yield ImageExample(fit_grey(image, self.spec, self.name(number)), str(label))

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


@dataclass(frozen=True)
class RecordImages:
    """Images with captions, as lines of JSON.

    Args:
        path: file of lines such as {"image": [[0, 255], [12, 7]], "caption": "a seven"}; an image
            has rows of grey values from 0 to 255, or of such values for red, green and blue.
        spec: size and channels of the result.
    """

    path: Path
    spec: ImageSpec

    def __iter__(self) -> Iterator[ImageExample]:
        """Yield the images, with their captions as labels.

        Raises:
            DataError: when a line is no such object, or its image is none.
        """
        for line, _, text in CorpusFile(self.path).filled_lines():
            where = f"{self.path}:{line}"
            record = parse_json(text, where, _RECORD_REMEDY)
            if not (isinstance(record, dict) and isinstance(record.get("caption"), str)):
                raise DataError(
                    "The line is no object with a caption", where=where, remedy=_RECORD_REMEDY
                )
            pixels = _of_rows(record.get("image"), where)
            picture = from_array(
                pixels, self.spec.channels or (1 if pixels.ndim == 2 else 3), where
            )
            yield ImageExample(_fitted(picture, self.spec.size, where), record["caption"])

    def name(self, number: int) -> str:
        """Return the name of an image, given its number from 0, for messages."""
        return f"{self.path}, image {number + 1}"

    def content_hash(self) -> str:
        return _hash([("records", self.path)], self.spec)


_RECORD_REMEDY = 'Each line must be an object like {"image": [[0, 255], [9, 0]], "caption": "a 1"}'


def _of_rows(rows: object, where: str) -> Pixels:
    """Return rows of values as an array [h, w] or [h, w, 3] of bytes."""
    try:
        return as_pixels(rows, where)
    except ValueError:  # rows of different lengths
        raise DataError(
            "The rows of the image differ in length", where=where, remedy=_RECORD_REMEDY
        ) from None


ImageReader = IdxReader | FolderReader | RecordImages
"""The images of one corpus, read anew in every iteration."""


def image_reader(corpus: CorpusSpec, spec: ImageSpec) -> ImageReader:
    """Make the reader of a corpus of labelled images.

    Args:
        corpus: IDX files of images and labels as source and target, or a folder or lines of JSON
            as file.
        spec: size and channels of the result.

    Raises:
        DataError: when the corpus is none of them.
    """
    if corpus.source is not None and corpus.target is not None:
        return IdxReader(Path(corpus.source), Path(corpus.target), spec)
    folder = Path(corpus.file or "")
    if folder.suffix == ".jsonl":
        return RecordImages(folder, spec)
    if not folder.is_dir():
        what = "These are images without labels" if is_idx(folder) else "This is no such folder"
        raise DataError(what, where=str(folder), remedy=_REMEDY)
    return FolderReader.of(folder, spec)


def fit_grey(image: Pixels, spec: ImageSpec, where: str) -> Pixels:
    """Return a grey image with the channels and the size that are asked for.

    Args:
        image: grey values [height, width] uint8.
        spec: size and channels of the result.
        where: name of the image, for messages.
    """
    channels, size = spec.channels or 1, spec.size
    # Grey images of the right size, MNIST's case, need no Pillow.
    if channels == 1 and (size is None or image.shape == (size, size)):
        return image[None]
    return _fitted(from_array(image, channels, where), size, where)


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

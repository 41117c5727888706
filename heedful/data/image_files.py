"""PNG and JPEG files as pixels. Needs Pillow, which is loaded when the first is read."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from heedful.errors import ConfigError, DataError
from heedful.nn.spec import Resampling

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = npt.NDArray[np.uint8]

SUFFIXES = (".png", ".jpg", ".jpeg")
_FORMATS = ("PNG", "JPEG")
_MODES = {1: "L", 3: "RGB"}
_DEEP = ("I", "F")
"""The first letters of Pillow's modes with more than a byte for a pixel's channel."""


def read_image(source: Path | BinaryIO, channels: int, where: str | None = None) -> Image:
    """A picture in grey or colour, the way up that its file says.

    What is transparent in it shows the colour that its pixels have beneath.

    Args:
        source: PNG or JPEG, or what holds its bytes.
        channels: 1 for grey, 3 for colour.
        where: the picture's name, for the error message; its path if unset.

    Raises:
        DataError: when it is missing, no such picture, damaged, of more pixels than Pillow opens
            without risk, or of more than 8 bits a channel.
        ConfigError: when Pillow is not installed.
    """
    library = _pillow()
    from PIL import ImageOps

    name = str(source) if where is None else where

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", library.DecompressionBombWarning)
            with library.open(source, formats=_FORMATS) as image:
                if image.mode.startswith(_DEEP):
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
    except (OSError, SyntaxError, ValueError) as error:  # all three tell of damaged content
        raise DataError(
            f"The picture cannot be read: {error}", where=name, remedy="Save it again"
        ) from None


def to_square(image: Image, side: int, resample: Resampling | None, where: str) -> Pixels:
    """A picture's pixels, brought to the size of the model if it has another.

    Args:
        image: grey or colour.
        side: height and width of the result.
        resample: how; None refuses other sizes.
        where: the picture's name, for the error message.

    Returns:
        [C, side, side] uint8.

    Raises:
        DataError: for another size where that is refused.
    """
    if image.size != (side, side):
        if resample is None:
            raise wrong_size(image.size[1], image.size[0], side, where)
        image = image.resize((side, side), getattr(_pillow().Resampling, resample.upper()))
    return pixels_of(image)


def pixels_of(image: Image) -> Pixels:
    """A grey or colour picture as [C, h, w] uint8."""
    array = np.asarray(image, np.uint8)
    return array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1))


def from_array(pixels: Pixels, channels: int, where: str) -> Image:
    """Pixels as a picture in grey or colour.

    Args:
        pixels: [h, w], or [h, w, C] with the three of red, green and blue, perhaps a fourth.
        channels: 1 for grey, 3 for colour.
        where: what to call them in errors.

    Raises:
        DataError: when they are something else.
        ConfigError: when Pillow is not installed.
    """
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
    """The error about an image of another size than all others, to be raised."""
    return DataError(
        f"The image has {height} × {width} pixels (height × width), not {side} × {side}",
        where=where,
        remedy="Set images.size, to which all are then resized, or give images of one size",
    )


def image_files(folder: Path) -> list[Path]:
    """The pictures in a folder and those below it, sorted; hidden files are not looked at.

    Raises:
        DataError: when there is none.
    """
    found = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    )
    if not found:
        raise DataError(
            f"There is no picture in the folder ({', '.join(SUFFIXES)})",
            where=str(folder),
            remedy="Check that it is the right one",
        )
    return found


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

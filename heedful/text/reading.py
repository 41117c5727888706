"""Reading a tokenizer's file, and what is wrong with files and texts that no tokenizer can take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from heedful.errors import DataError, ModelError


def read_text(path: Path) -> str:
    """The content of a tokenizer file.

    Raises:
        ModelError: when it is missing or no text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ModelError(
            "There is no tokenizer here",
            where=str(path),
            remedy="Check that the path is a model directory",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(str(path), str(error)) from None


def damaged(where: str, detail: str) -> ModelError:
    """The error about a tokenizer file that is not whole, to be raised."""
    return ModelError(
        f"The tokenizer cannot be read ({detail})",
        where=where,
        remedy="The file is damaged; restore it from where the model came from",
    )


def not_unicode(texts: Sequence[str]) -> DataError:
    """The error about the first of these texts that no tokenizer can take, to be raised."""
    for number, text in enumerate(texts, start=1):
        for position, character in enumerate(text):
            if "\ud800" <= character <= "\udfff":
                return DataError(
                    f"Text {number} holds half a surrogate pair (U+{ord(character):04X}) at "
                    f"character {position + 1}, which is not Unicode text",
                    remedy="Read the text as UTF-8",
                )
    return DataError("The text is not Unicode text", remedy="Pass strings, read as UTF-8")

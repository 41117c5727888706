"""Documents that are ZIP archives: unpacked within limits, and packed again in the same order."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping

from heedful.errors import DataError

_MOST_BYTES = 1 << 28
"""Maximum size of an unpacked document in bytes."""
_MOST_FILES = 10_000
_COMPOUND = bytes.fromhex("d0cf11e0a1b11ae1")
"""First bytes of a compound file, the form of encrypted and of old Office documents."""


def unpacked(data: bytes, name: str) -> dict[str, bytes]:
    """Return the files of an archive by their paths.

    Args:
        data: bytes of the archive.
        name: name of the document, for messages.

    Raises:
        DataError: when the data is no archive, is encrypted, or has too many bytes or files.
    """
    too_large = DataError(
        f"The document is larger than {_MOST_BYTES >> 20} MB when unpacked", where=name
    )
    if data.startswith(_COMPOUND):
        raise DataError(
            "The document is encrypted, or of a format from before 2007",
            where=name,
            remedy="Save it without a password in a format of today, such as DOCX",
        )
    files: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            size = sum(entry.file_size for entry in entries)
            if len(entries) > _MOST_FILES or size > _MOST_BYTES:
                raise too_large
            for entry in entries:
                if entry.flag_bits & 1:
                    raise DataError(
                        "The document is encrypted", where=name, remedy="Save it without a password"
                    )
                # zipfile reads at most as many bytes of an entry as its header says.
                files[entry.filename] = archive.read(entry)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, zlib.error) as error:
        raise DataError(
            f"The document is no whole archive: {error}", where=name, remedy="Save it again"
        ) from None
    return files


def packed(data: bytes, files: Mapping[str, bytes], changed: Mapping[str, bytes]) -> bytes:
    """Return an archive with the same files in the same order, some with changed content.

    Args:
        data: bytes of the original archive.
        files: files of the original archive, by path.
        changed: new content of some files.
    """
    if all(files[path] == content for path, content in changed.items()):
        return data
    stream = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as archive,
        zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as result,
    ):
        result.comment = archive.comment
        for entry in archive.infolist():
            content = changed.get(entry.filename, files[entry.filename])
            # The compression of each file stays: readers of EPUB and ODT need an uncompressed
            # `mimetype`.
            result.writestr(entry, content, compress_type=entry.compress_type)
    return stream.getvalue()

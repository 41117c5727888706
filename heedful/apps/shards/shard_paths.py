"""The shards that arguments of the command line name: files, patterns and folders."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from pathlib import Path

from heedful.data.text_file import file_form
from heedful.errors import DataError

FORMS = (".txt", ".tsv", ".jsonl", ".parquet")
"""Suffixes of the file formats of shards; .gz may follow all but the last."""


def find_shards(words: Iterable[Path], out: Path) -> list[Path]:
    """Return the absolute paths of the shards that arguments name, sorted by name.

    Args:
        words: files; patterns such as `part-*.txt`; folders, for all their files except those whose
            names begin with a dot.
        out: folder of the translations.

    Raises:
        DataError: when there are no files, a suffix is unknown, two files have the same name, or a
            file lies in `out`.
    """
    found: dict[str, Path] = {}
    for path in [path.absolute() for word in words for path in _files(word)]:
        _check(path, out.absolute())
        # A translated shard has the name of its source.
        other = found.setdefault(path.name, path)
        if other != path:
            raise DataError(
                f"Two shards have the name {path.name}",
                where=f"{other} and {path}",
                remedy="Translate them into different folders, or rename one",
            )
    return [found[name] for name in sorted(found)]


def _files(word: Path) -> list[Path]:
    """Return the files that one argument names."""
    if word.is_dir():
        files = [path for path in word.iterdir() if path.is_file() and path.name[0] != "."]
        if not files:
            raise DataError("This folder holds no files", where=str(word), remedy="Check the path")
        return files
    if word.exists():
        return [word]
    matches = [Path(path) for path in glob.glob(str(word), recursive=True)]
    files = [path for path in matches if path.is_file()]
    if not files:
        raise DataError(
            "No file has this name or matches this pattern",
            where=str(word),
            remedy="Check the path; quote patterns, such as 'corpus/*.txt'",
        )
    return files


def _check(shard: Path, out: Path) -> None:
    try:
        str(shard).encode()
    except UnicodeEncodeError:
        raise DataError(
            "The name of this shard holds bytes that are not UTF-8",
            where=ascii(str(shard)),
            remedy="Rename it",
        ) from None
    unread = shard.name.endswith((".parquet.gz", ".zst"))  # their translations could not be so
    if file_form(shard) not in FORMS or unread:
        raise DataError(
            "The end of this name does not say how the shard is read",
            where=str(shard),
            remedy="Known: .txt, .tsv and .jsonl, each perhaps with .gz, and .parquet; rename it, "
            "or name the shards by a pattern that leaves it out",
        )
    if shard.resolve().parent == out.resolve():
        raise DataError(
            "The translations would lie in the folder of their shards, under the same names",
            where=str(out),
            remedy="Give another folder",
        )

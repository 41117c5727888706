"""The shards that arguments of the command line name: files, patterns and folders."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from heedful.data.text_file import file_form
from heedful.errors import DataError

FORMS = (".txt", ".tsv", ".jsonl", ".parquet")
"""Suffixes of the forms of shards; .gz may follow all of them but the last."""


@dataclass(frozen=True)
class CorpusShard:
    """One file of a corpus.

    Args:
        path: absolute path of the file.
    """

    path: Path

    @property
    def name(self) -> str:
        """The file's name, which is also that of its translation."""
        return self.path.name

    @property
    def form(self) -> str:
        """The suffix of its name, one of `FORMS`."""
        return file_form(self.path)


def find_shards(words: Iterable[Path], out: Path) -> list[CorpusShard]:
    """Return the shards that arguments name, sorted by name.

    Args:
        words: files; patterns such as `part-*.txt`; folders, for all their files except those whose
            names begin with a dot.
        out: folder of the translations.

    Raises:
        DataError: when there are no files, a suffix is unknown, two files have the same name, or a
            file lies in `out`.
    """
    found: dict[str, CorpusShard] = {}
    for path in [path.absolute() for word in words for path in _files(word)]:
        shard = CorpusShard(path)
        _check(shard, out.absolute())
        other = found.setdefault(shard.name, shard)
        if other.path != path:
            raise DataError(
                f"Two shards have the name {shard.name}",
                where=f"{other.path} and {path}",
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


def _check(shard: CorpusShard, out: Path) -> None:
    try:
        str(shard.path).encode()
    except UnicodeEncodeError:
        raise DataError(
            "The name of this shard holds bytes that are not UTF-8",
            where=ascii(str(shard.path)),
            remedy="Rename it",
        ) from None
    compressed_parquet = shard.form == ".parquet" and shard.path.suffix == ".gz"
    if shard.form not in FORMS or compressed_parquet:
        raise DataError(
            "The end of this name does not say how the shard is read",
            where=str(shard.path),
            remedy="Known: .txt, .tsv and .jsonl, each perhaps with .gz, and .parquet; rename it, "
            "or name the shards by a pattern that leaves it out",
        )
    if shard.path.resolve().parent == out.resolve():
        raise DataError(
            "The translations would lie in the folder of their shards, under the same names",
            where=str(out),
            remedy="Give another folder",
        )

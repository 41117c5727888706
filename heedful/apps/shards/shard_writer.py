"""Writing of shard folders in constant memory; a folder appears complete or not at all."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from heedful.data.corpus_spec import SHARD_INDEX, CorpusSpec
from heedful.data.pair_corpus import CorpusReader, line_name
from heedful.data.shard_folder import SCHEMA_VERSION, Kind, Shard, ShardIndex
from heedful.data.text_corpus import Unit, document_reader
from heedful.data.text_file import TextFile
from heedful.durable import whole_folder, write_synced
from heedful.errors import DataError

LARGEST_TEXT = 16_000_000
"""Number of UTF-8 bytes after which a shard ends, since a shard is read as a whole."""

_COMPRESSION = 6
"""Level of gzip: level 1 takes half of the time and makes files a quarter larger."""

_REPORT_EVERY = 1000

Progress = Callable[[int, int | None], None]


def write_shards(
    specs: Sequence[CorpusSpec],
    out: Path,
    *,
    shard_examples: int,
    unit: Unit | None = None,
    languages: tuple[str, str] | None = None,
    progress: Progress = lambda done, total: None,
) -> ShardIndex:
    """Write corpora, one after the other, as one folder of shards.

    The same input gives the same bytes.

    Args:
        specs: files of the corpora.
        out: folder to make.
        shard_examples: number of examples of a shard.
        unit: unit of text in corpora of texts, such as a line; None for sentence pairs.
        languages: language codes of source and target.
        progress: receiver of the finished bytes and the total bytes of the current corpus; the
            total is None if unknown.

    Raises:
        DataError: naming the file and line that is no example.
        OSError: when the folder cannot be written.
    """
    kind: Kind = "pairs" if unit is None else "texts"
    shards: list[Shard] = []
    lines: list[bytes] = []
    text_bytes = 0
    with whole_folder(out) as folder:
        for texts, where, done, total in _examples(specs, unit):
            line, size = _line_of(texts, where)
            lines.append(line)
            text_bytes += size
            # The limit that is reached first counts: shards of long texts have few examples.
            if len(lines) == shard_examples or text_bytes >= LARGEST_TEXT:
                shards.append(_write(folder, len(shards), lines, text_bytes))
                lines, text_bytes = [], 0
            if len(lines) % _REPORT_EVERY == 0:
                progress(done, total)
        if lines:
            shards.append(_write(folder, len(shards), lines, text_bytes))
        index = ShardIndex(
            schema_version=SCHEMA_VERSION, kind=kind, languages=languages, shards=tuple(shards)
        )
        text = json.dumps(index.plain(), indent=1, ensure_ascii=False)
        # The index is written last: a folder without an index is not a shard folder.
        write_synced(folder / SHARD_INDEX, text.encode())
    return index


def _write(folder: Path, number: int, lines: Sequence[bytes], text_bytes: int) -> Shard:
    # Without a time stamp the same lines give the same bytes, and so the same SHA-256.
    content = gzip.compress(b"".join(lines), _COMPRESSION, mtime=0)
    # Six digits, so that names sort in the order of the examples.
    name = f"shard-{number:06}.jsonl.gz"
    (folder / name).write_bytes(content)
    return Shard(
        file=name,
        examples=len(lines),
        bytes=len(content),
        text_bytes=text_bytes,
        sha256=hashlib.sha256(content).hexdigest(),
    )


def _line_of(texts: Mapping[str, str], where: str) -> tuple[bytes, int]:
    """Return the line of an example, and the size of its texts in bytes."""
    try:
        size = sum(len(text.encode()) for text in texts.values())
    except UnicodeEncodeError:
        raise DataError(
            "The text holds half a surrogate pair",
            where=where,
            remedy="Replace the character",
        ) from None
    return json.dumps(texts, ensure_ascii=False).encode() + b"\n", size


def _examples(
    specs: Sequence[CorpusSpec], unit: Unit | None
) -> Iterator[tuple[dict[str, str], str, int, int | None]]:
    """Yield each example's texts by key, its file and line, and the progress."""
    for spec in specs:
        if unit is None:
            reader = CorpusReader(spec)
            for line, source, target in reader:
                where = line_name(spec, line)
                yield {"source": source, "target": target}, where, *reader.progress
        else:
            documents = document_reader(spec, unit)
            file = TextFile(documents.path)
            total = None if file.facts.compressed else file.bytes_total
            done = 0
            for document in documents:
                done += len(document.text)  # characters suffice for a progress bar
                where = f"{documents.path}:{document.line}"
                yield {"text": document.text}, where, done, total

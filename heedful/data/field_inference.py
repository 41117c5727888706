"""The vocabulary of records, from settings and from what files show of their fields."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from heedful.data.corpus_spec import RecordSpec
from heedful.errors import ConfigError, DataError, suggest
from heedful.text.field_tokenizer import FieldTokenizer
from heedful.text.token_fields import TokenField, read_fields
from heedful.text.tokenizer import Tokenizer
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer


class _Seen(NamedTuple):
    """The values of a field in the training data.

    Args:
        shapes: number of records by the shape of their value; () for a text or a single value.
        names: number of occurrences of each name or text.
        largest: largest number; −1 without numbers.
    """

    shapes: Counter[tuple[int, ...]]
    names: Counter[str]
    largest: list[int]


_NAMES = 256
"""Most different strings of a field that are taken for names; above, they are texts."""


def train_fields(
    readers: Sequence[Any],
    spec: RecordSpec,
    texts: TokenizerSpec,
    warn: Callable[[str], None],
) -> FieldTokenizer:
    """Make the vocabulary of records.

    Args:
        readers: readers of the training files.
        spec: fields of the records; if it names none, those that the reader knows, or else all that
            the records have.
        texts: settings of the tokenizers of fields of text.
        warn: receiver of warnings about the texts.

    Raises:
        DataError: when a wanted field is missing, or a value is no number, name or text.
        ConfigError: when fields are wrong, or texts cannot be tokenised.
    """
    # A reader may know the fields of its records, as that of series does.
    wanted = read_fields(spec.fields or getattr(readers[0], "fields", ()))
    seen = _look(readers, [field.name for field in wanted])
    fields = [_completed(field, seen[field.name]) for field in wanted] or [
        _inferred(name, each) for name, each in seen.items()
    ]
    tokenizers = {
        field.name: _text_tokenizer(texts, list(seen[field.name].names), warn)
        for field in fields
        if field.content == "text"
    }
    return FieldTokenizer(fields, tokenizers, spec.model_copy(update={"fields": ()}).plain())


def train_sides(
    readers: Sequence[Any],
    spec: RecordSpec,
    texts: TokenizerSpec,
    warn: Callable[[str], None],
) -> TokenizerPair:
    """Make the vocabularies of the fields that an encoder reads and of those that are written.

    Args:
        readers, spec, texts, warn: arguments of `train_fields`.

    Returns:
        The same tokenizer twice if no field is read by an encoder.

    Raises:
        DataError: as `train_fields` does.
        ConfigError: as `train_fields` does, and when a field to read is unknown, or no field is
            left to learn.
    """
    fields = train_fields(readers, spec, texts, warn)
    if not spec.source:
        return TokenizerPair(fields, fields)
    known = [field.name for field in fields.fields]
    if unknown := [name for name in spec.source if name not in known]:
        raise ConfigError(
            f"There is no field {unknown[0]!r} for the encoder to read",
            where="tokens.source",
            remedy=suggest(unknown[0], known),
        )
    written = fields.only(set(known) - set(spec.source))
    if all(field.given for field in written.fields):
        raise ConfigError(
            "All fields are read or given, so there is nothing to learn",
            where="tokens.source",
            remedy="Leave a field out, which the decoder then writes",
        )
    return TokenizerPair(fields.only(spec.source), written)


def _text_tokenizer(
    spec: TokenizerSpec, texts: list[str], warn: Callable[[str], None]
) -> Tokenizer:
    made = train_tokenizer(spec, texts, warn)
    if not isinstance(made, Tokenizer):
        raise ConfigError(
            "Fields of text are read by the package's own tokenizers",
            where="tokenizer.kind",
            remedy="Use bpe, byte-bpe, unigram or characters",
        )
    return made


def _look(readers: Sequence[Any], wanted: Sequence[str]) -> dict[str, _Seen]:
    """Look at the fields of all training records.

    Raises:
        DataError: when a wanted field is missing, or a record has other fields than the first.
    """
    seen: dict[str, _Seen] = {}
    for where, record in _records(readers):
        for name in wanted or list(record):
            if name not in record:
                raise DataError(
                    f"The record has no field {name!r}", where=where, remedy=suggest(name, record)
                )
            # A field that comes late has no value in the records before.
            each = seen.setdefault(name, _Seen(Counter(), Counter(), [-1]))
            _look_at(record[name], each, f"{where}: {name}")
    for name, each in seen.items():
        if each.names and each.largest[0] >= 0:
            raise DataError(
                f"The field {name!r} has numbers in some records, strings in others",
                remedy="Write all of its values in one way",
            )
    return seen


def _records(readers: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for reader in readers:
        yield from reader.records()


def _look_at(value: Any, seen: _Seen, where: str) -> None:
    if isinstance(value, str):
        seen.shapes[()] += 1
        seen.names[value] += 1
        return
    if isinstance(value, list) and value and isinstance(value[0], str):
        seen.shapes[(len(value),)] += 1
        seen.names.update(map(str, value))
        return
    try:
        array = np.asarray(value if isinstance(value, list) else [value])
    except ValueError:
        array = np.zeros(1, object)
    if array.size and array.dtype.kind not in "iu":
        raise DataError(
            "The value is neither whole numbers of one shape, nor names, nor a text",
            where=where,
            remedy="Write numbers from 0 on, nested in lists as rows and columns",
        )
    seen.shapes[array.shape] += 1
    if array.size:
        seen.largest[0] = max(seen.largest[0], int(array.max()))


def _inferred(name: str, seen: _Seen) -> TokenField:
    """Return the field that the data shows: its content, its size, and its shape if all agree."""
    shape = next(iter(seen.shapes)) if len(seen.shapes) == 1 else None
    # Rows of one length in any number, such as steps of several voices.
    inner = {each[1:] for each in seen.shapes}
    if shape is None and len(inner) == 1 and min(map(len, seen.shapes)) > 1:
        shape = (0, *inner.pop())
    is_text = bool(seen.names) and shape == () and len(seen.names) > _NAMES
    content = "text" if is_text else "names" if seen.names else "numbers"
    written = f"{name}:{max(seen.largest[0] + 1, 1) if content == 'numbers' else content}"
    if shape is not None and content != "text":
        written += ":" + "x".join(str(size or "any") for size in shape or (1,))
    return _completed(TokenField.read(written), seen)


def _completed(field: TokenField, seen: _Seen) -> TokenField:
    """Return a field with the names that the data has."""
    if field.content != "names":
        return field
    names = tuple(sorted(seen.names))
    return field.model_copy(update={"names": names, "size": len(names)})

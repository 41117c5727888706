"""Tokens of records: every field has a range of ids of its own in one vocabulary.

A record is text as well, a line of JSON such as {"label": 3, "pixels": [[0, 15], [7, 0]]}, so that
all that reads and writes texts reads and writes images, melodies and episodes.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, Self

import numpy as np
import numpy.typing as npt

from heedful.errors import ConfigError, DataError, suggest
from heedful.text.chat_template import ChatPrompt, encode_marked
from heedful.text.token_fields import TokenField
from heedful.text.tokenizer import SPECIALS, TextTokenizer, Tokenizer, damaged, refuse_newer

KIND = "fields"

_SPECIALS = SPECIALS[:3]

Ids = npt.NDArray[np.int64]


class TokenState(NamedTuple):
    """A place in a sequence.

    Args:
        allowed: ranges of the ids that may come next, their ends exclusive.
        end: id that leads to the next place while others stay; None if every id leads there.
    """

    allowed: tuple[tuple[int, int], ...]
    end: int | None = None


class FieldTokenizer(TextTokenizer):
    """A tokenizer of records.

    The ids of a field follow those of the one before it. A field of any length has an end token
    after its values, but the last field ends with the sequence. A text of fixed length is filled
    up with the padding of its own tokenizer (as in DALL-E; Ramesh 2021).

    Args:
        fields: fields in their order; their sizes are known, but for those of texts.
        tokenizers: tokenizers of the fields of text, by name.
        reading: settings by which files become records, as plain data.
    """

    is_imported = False
    # No value is unknown: padding stands in for the token, as in imported tokenizers of bytes.
    pad, bos, eos = range(len(_SPECIALS))
    unk = pad
    mask = None
    sentinels: tuple[int, ...] = ()
    first: tuple[int, ...] = ()
    between = None

    def __init__(
        self,
        fields: Sequence[TokenField],
        tokenizers: Mapping[str, Tokenizer] | None = None,
        reading: Mapping[str, Any] | None = None,
    ) -> None:
        self.reading = dict(reading or {})
        self.fields = tuple(fields)
        self.tokenizers = dict(tokenizers or {})
        self.last: tuple[int, ...] = (self.eos,)
        self._codes = {
            field.name: {name: code for code, name in enumerate(field.names or ())}
            for field in self.fields
        }
        sizes = []
        for field in self.fields:
            text = self.tokenizers.get(field.name)
            assert (field.content == "text") == (text is not None) and (text or field.size)
            ends = field.count is None and field is not self.fields[-1] and text is None
            sizes.append(text.size if text is not None else (field.size or 0) + ends)
        bounds = list(itertools.accumulate(sizes, initial=len(_SPECIALS)))
        self.starts = dict(zip((field.name for field in self.fields), bounds, strict=False))
        self.size = bounds[-1]

    def only(self, names: Collection[str]) -> Self:
        """Return the tokenizer of some of the fields, with ids of its own."""
        fields = [field for field in self.fields if field.name in names]
        texts = {name: each for name, each in self.tokenizers.items() if name in names}
        return type(self)(fields, texts, self.reading)

    # How a record becomes ids.

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode_record(_parsed(text)).tolist() for text in texts]

    def encode_record(self, record: Mapping[str, Any] | list[Any], *, partial: bool = False) -> Ids:
        """Return the ids of a record, without those before and after it.

        Args:
            record: value of each field; a list alone is that of the only field. Arrays are nested
                lists or flat.
            partial: flag of a beginning: the last fields may be missing, and the last value that
                is there may be incomplete, unless it is a condition. Without it, fields that are
                not the model's are left out, as files may have more than a model reads.

        Raises:
            DataError: when a field is missing or unknown, or has other values or another shape.
        """
        values = record if isinstance(record, dict) else {self.fields[0].name: record}
        if not isinstance(record, dict) and len(self.fields) > 1:
            raise self._wrong("A list says nothing of fields, of which there are several")
        known = [field.name for field in self.fields]
        if partial and (more := [name for name in values if name not in known]):
            raise self._wrong(f"There is no field {more[0]!r}", suggest(more[0], known))
        there = [values.get(name) is not None for name in known]
        count = sum(there) if partial else len(there)
        if not all(there[:count]):
            raise self._wrong(f"The field {known[there.index(False)]!r} is missing")
        parts = [
            # A condition is never continued: a text that is given is the whole text.
            self._ids(
                field,
                values[field.name],
                partial=partial and number == count and not field.given,
            )
            for number, field in enumerate(self.fields[:count], start=1)
        ]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def _ids(self, field: TokenField, value: Any, *, partial: bool) -> Ids:
        """Return the ids of a field's value, its end or filling included unless it is partial."""
        text = self.tokenizers.get(field.name)
        found = self._text_codes(field, value) if text else self._codes_of(field, value, partial)
        start = self.starts[field.name]
        count = field.count
        if count is None and (partial or field is self.fields[-1]):
            return found + start
        if count is None:
            return np.append(found, self._end(field) - start) + start
        if text is not None and not partial:
            found = np.pad(found, (0, count - len(found)), constant_values=text.pad)
        if len(found) > count or (len(found) < count and not partial):
            raise self._wrong(
                f"The field {field.name!r} has {len(found):,} values, not {_sizes(field)}"
            )
        return found + start

    def _text_codes(self, field: TokenField, value: Any) -> Ids:
        if not isinstance(value, str):
            raise self._wrong(f"The field {field.name!r} is a text, not {_short(value)}")
        codes = np.array(self.tokenizers[field.name].encode(value), np.int64)
        if field.count is not None and len(codes) > field.count:
            raise self._wrong(
                f"The field {field.name!r} has {len(codes)} tokens of text, more than {field.count}"
            )
        return codes

    def _codes_of(self, field: TokenField, value: Any, partial: bool) -> Ids:
        """Return the codes of numbers or names, flat."""
        if field.content == "names":
            codes = self._codes[field.name]
            names = value if isinstance(value, list) else [value]
            unknown = [name for name in names if not isinstance(name, str) or name not in codes]
            if unknown:
                raise self._wrong(
                    f"The field {field.name!r} has no value {_short(unknown[0])}",
                    suggest(str(unknown[0]), codes),
                )
            return np.array([codes[name] for name in names], np.int64)
        try:
            array = np.asarray(value)
        except ValueError:  # rows of several lengths
            array = np.zeros(0, object)
        if array.size == 0 and field.count is None:
            return np.zeros(0, np.int64)
        if array.dtype.kind not in "iu":
            raise self._wrong(
                f"The field {field.name!r} holds whole numbers of one shape, not {_short(value)}"
            )
        # A flat list has the values of an array in row-major order. A beginning may end in a row,
        # or have the first rows as they are.
        fits = array.ndim < 2 or (
            array.shape[1:] == field.shape[1:]
            and (field.shape[0] in (0, len(array)) or (partial and len(array) < field.shape[0]))
        )
        if not fits or (field.count is None and array.size % field.step and not partial):
            raise self._wrong(
                f"The field {field.name!r} is {' × '.join(map(str, array.shape))}, not "
                f"{_sizes(field)}"
            )
        flat = array.reshape(-1).astype(np.int64)
        assert field.size is not None
        if flat.size and not 0 <= flat.min() <= flat.max() < field.size:
            bad = flat[(flat < 0) | (flat >= field.size)][0]
            raise self._wrong(
                f"The field {field.name!r} has a value {bad}; its values are 0 to {field.size - 1}"
            )
        return flat

    def _wrong(self, problem: str, remedy: str | None = None) -> DataError:
        form = ", ".join(field.write() for field in self.fields)
        return DataError(problem, remedy=remedy or f"The fields are {form}")

    # How ids become a record again.

    def decode(self, ids: Sequence[int]) -> str:
        return json.dumps(self.decode_record(ids), ensure_ascii=False)

    def decode_record(self, ids: Sequence[int]) -> dict[str, Any]:
        """Return the fields of ids, as far as they go; those that are not there are left out.

        An array of a fixed shape that is not complete is a flat list. One of any number of rows has
        its whole rows: a record that ended for lack of positions is a record, and can be continued.
        """
        given = np.asarray(ids, np.int64)
        numbers = self.field_numbers(given)
        return {
            field.name: self._value(field, (given[here] - self.starts[field.name]).tolist())
            for number, field in enumerate(self.fields)
            if (here := numbers == number).any()
        }

    def _value(self, field: TokenField, codes: list[int]) -> Any:
        text = self.tokenizers.get(field.name)
        if text is not None:
            return text.decode(list(itertools.takewhile(lambda code: code != text.eos, codes)))
        values: list[Any] = [code for code in codes if code < (field.size or 0)]
        if field.names is not None:
            values = [field.names[code] for code in values]
        if field.shape == (1,) and len(values) == 1:
            return values[0]
        whole = field.count or len(values) // field.step * field.step
        if len(field.shape) > 1 and (len(values) == whole or field.count is None):
            return np.array(values[:whole]).reshape(-1, *field.shape[1:]).tolist()
        return values

    def field_numbers(self, ids: Ids) -> Ids:
        """Return the number of the field of each id; −1 for padding and begin, N for an end."""
        starts = np.array(list(self.starts.values()), np.int64)
        numbers = np.searchsorted(starts, ids, side="right") - 1
        # The end of a sequence, and ids past the vocabulary, come after the last field.
        return np.where((ids == self.eos) | (ids >= self.size), len(self.fields), numbers)

    def token(self, id: int) -> str:
        number = int(self.field_numbers(np.array(id)))
        if not 0 <= number < len(self.fields):
            return f"<{_SPECIALS[id]}>" if 0 <= id < len(_SPECIALS) else f"<{id}>"
        field = self.fields[number]
        code = int(id) - self.starts[field.name]
        text = self.tokenizers.get(field.name)
        if text is not None:
            return text.token(code)
        if code == field.size:
            return f"<end of {field.name}>"
        return f"{field.name}={field.names[code] if field.names else code}"

    # What follows what.

    def _end(self, field: TokenField) -> int:
        """Return the id that ends a field of any length."""
        if field is self.fields[-1]:
            return self.eos
        text = self.tokenizers.get(field.name)
        return self.starts[field.name] + (text.eos if text is not None else field.size or 0)

    @functools.cached_property
    def states(self) -> tuple[TokenState, ...]:
        """The places of a sequence after its begin token, in their order."""
        places = itertools.chain.from_iterable(map(self._states_of, self.fields))
        return (*places, TokenState(((self.eos, self.eos + 1),)))

    def _states_of(self, field: TokenField) -> Iterator[TokenState]:
        start, text = self.starts[field.name], self.tokenizers.get(field.name)
        values = (start, start + (field.size or 0))
        if text is not None:
            # Of its special tokens only an end or a filling is ever written.
            values = (start + len(SPECIALS), start + text.size)
        if field.count is None:
            end = self._end(field)
            yield TokenState((values, (end, end + 1)), end)
            return
        filling = () if text is None else ((start + text.pad, start + text.pad + 1),)
        ranges = (values, *filling)
        yield from itertools.repeat(TokenState(ranges), field.count)

    @property
    def longest(self) -> int | None:
        """Number of tokens of every sequence, its begin and end counted; None if it differs."""
        counts = [field.count for field in self.fields]
        return None if None in counts else 2 + sum(count or 0 for count in counts)

    def axes(self, longest: int) -> tuple[tuple[int, ...], ...] | None:
        """Return the axes of the fields, with one for the begin and end token each.

        Args:
            longest: number of positions, which a last field of any length fills.

        Returns:
            Sizes by field; None where a field before the last has any length.
        """
        *known, last = self.fields
        if any(field.count is None for field in known):
            return None
        left = longest - 2 - sum(field.count or 0 for field in known)
        rows = last.shape[0] or max(1, -(-left // last.step))
        return ((1,), *(field.shape for field in known), (rows, *last.shape[1:]), (1,))

    @property
    def row_size(self) -> int:
        """Number of values of a row of the first field, such as a moment of a sound."""
        return self.fields[0].step

    @functools.cached_property
    def learned(self) -> npt.NDArray[np.bool_]:
        """Flags of the ids that a model learns to write [V]: those of no condition, and an end.

        The end of a last field of fixed shape follows from the shape, and would only dilute a mean.
        """
        flags = np.zeros(self.size, np.bool_)
        flags[self.eos] = self.fields[-1].count is None
        ends = [*list(self.starts.values())[1:], self.size]
        for field, end in zip(self.fields, ends, strict=True):
            flags[self.starts[field.name] : end] = not field.given
        return flags

    # The rest of the interface of tokenizers.

    def encode_prompt(self, text: str) -> list[int]:
        """Return the ids of the beginning of a record, a line of JSON; none of an empty one."""
        record = _parsed(text) if text.strip() else {}
        return [int(id) for id in self.encode_record(record, partial=True)]

    def encode_spans(self, text: str) -> NoReturn:
        raise self._lacks("places of characters: it reads records")

    def encode_masked(self, text: str, name: str, gaps: Sequence[int] | None = None) -> NoReturn:
        raise self._lacks("gaps")

    def encode_dropout(self, text: str, dropout: float, seed: int) -> NoReturn:
        raise self._lacks("merges to leave out (objective.bpe_dropout)")

    def extended(self, tokens: Sequence[str]) -> NoReturn:
        raise self._lacks("room for more tokens")

    def _lacks(self, thing: str) -> ConfigError:
        return ConfigError(
            f"A vocabulary of fields has no {thing}", remedy="Use a model of texts for it"
        )

    def content(self) -> dict[str, Any]:
        texts = {name: json.loads(each.to_json()) for name, each in self.tokenizers.items()}
        return {
            "kind": KIND,
            "fields": [field.plain() for field in self.fields],
            "texts": texts,
            "reading": self.reading,
        }

    @classmethod
    def from_json(cls, text: str, *, where: str = "tokenizer.json") -> Self:
        content = json.loads(text)
        try:
            refuse_newer(content["schema_version"], where)
            fields = [TokenField.parse(each) for each in content["fields"]]
            texts = {
                name: Tokenizer.from_json(json.dumps(each), where=f"{where}: {name}")
                for name, each in content["texts"].items()
            }
            wanted = {field.name for field in fields if field.content == "text"}
            if not isinstance(content["reading"], dict):
                raise ValueError("the reading is no table")
            if not fields or wanted != texts.keys():
                raise ValueError("the tokenizers are not those of the fields")
            if any(field.size is None for field in fields if field.content != "text"):
                raise ValueError("a field has no size")
        except (KeyError, TypeError, AttributeError, ValueError, ConfigError) as error:
            raise damaged(where, str(error)) from None
        return cls(fields, texts, content["reading"])


def _parsed(text: str) -> Any:
    try:
        record = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        record = None
    if not isinstance(record, dict | list):
        raise DataError(
            f"This is no record: {_short(text)}",
            remedy='Give a line of JSON, such as {"pixels": [0, 3, 1]}',
        )
    return record


def _sizes(field: TokenField) -> str:
    return " × ".join(str(size or "any number") for size in field.shape)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return repr(text if len(text) <= 40 else f"{text[:37]}…")


def prompt_ids(tokenizer: TextTokenizer, prompt: str) -> list[int]:
    """Return the token ids of a prompt, at least one, with the begin token as in training."""
    if isinstance(tokenizer, FieldTokenizer):
        return [tokenizer.bos, *tokenizer.encode_prompt(prompt)]
    # `first` of the package's own tokenizers is for sources, which have an end token only.
    first = tokenizer.first if tokenizer.is_imported else (tokenizer.bos,)
    if isinstance(prompt, ChatPrompt):
        # Trained conversations begin as all texts do.
        return [tokenizer.bos, *encode_marked(tokenizer, prompt, [False] * len(prompt))[0]]
    return [*first, *tokenizer.encode(prompt)] or [tokenizer.bos]

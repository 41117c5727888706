"""Safe access to the `tokenizers` library for tokenizer files from unknown sources.

The library's Rust code panics on damaged rules, and such a panic is no `Exception`; a regular
expression may backtrack for hours. Both become errors that name the file.

Whole tokens can be added to a trained tokenizer: a text is searched for them before it is
segmented, so everything else is segmented as before.
"""

from __future__ import annotations

import json
import threading
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import tokenizers
from tokenizers import AddedToken, normalizers

from heedful.errors import ConfigError, DataError, ModelError, UserError
from heedful.text.pretokenization import OWN_PATTERNS

T = TypeVar("T")

_WHERE = "tokenizer.json"

# Patterns without excessive backtracking: our own, and those for SentencePiece's white space.
_HARMLESS = {"^ +| +$", " {2,}", *OWN_PATTERNS}
# Tokenizers encode a million characters a second; one that needs a millisecond for each is stuck.
_SECONDS, _SECONDS_PER_CHARACTER = 10.0, 1e-3


class Library:
    """A tokenizer of the `tokenizers` library whose failures are all raised as Heedful's errors.

    Args:
        state: serialisation of the tokenizer, as nested plain data.

    Attributes:
        tokenizer: object of the library, for access to its vocabulary.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.tokenizer = tokenizers.Tokenizer.from_str(json.dumps(state))
        self._has_time_limit = not _HARMLESS.issuperset(_patterns(state))

    def encode(
        self, texts: Sequence[str], originals: Sequence[str] | None = None
    ) -> list[list[int]]:
        """Return the ids of texts without special tokens, using all CPU cores.

        Args:
            texts: texts after Heedful's own conversions.
            originals: texts before these conversions, for error messages; the same if None.

        Raises:
            DataError: when a text is not valid Unicode (a lone surrogate).
            ModelError: when the tokenizer's rules fail on a text, or take too long.
        """
        batch = list(texts)
        encodings = self.call(
            # `fast` computes no offsets.
            lambda: self.tokenizer.encode_batch_fast(batch, add_special_tokens=False),
            texts if originals is None else originals,
        )
        return [encoding.ids for encoding in encodings]

    def encode_spans(
        self, text: str, original: str | None = None
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Return a text's ids, and the span of characters of each.

        Args:
            text: text after Heedful's own conversions.
            original: text before these conversions, for error messages; the same if None.

        Raises:
            DataError: when the text is not valid Unicode (a lone surrogate).
            ModelError: when the tokenizer's rules fail on the text, or take too long.
        """
        (encoding,) = self.call(
            lambda: self.tokenizer.encode_batch([text], add_special_tokens=False),
            [text if original is None else original],
        )
        return encoding.ids, encoding.offsets

    def call(self, function: Callable[[], T], texts: Sequence[str]) -> T:
        """Call a function of the library on texts; errors as for `encode`."""
        try:
            if not self._has_time_limit:  # the usual case, without a thread for each call
                return function()
            return _with_timeout(_SECONDS + _SECONDS_PER_CHARACTER * sum(map(len, texts)), function)
        except (TypeError, UnicodeEncodeError):
            raise not_unicode(texts) from None
        except TimeoutError:
            raise ModelError(
                "A regular expression of the tokenizer takes too long on a text",
                where=_WHERE,
                remedy="Do not use this tokenizer; take the model from a source that you trust",
            ) from None
        except BaseException as error:
            # Ctrl-C and the exit of the interpreter pass through.
            if not _is_panic(error):
                raise
            raise ModelError(
                f"The tokenizer's rules fail on a text: {error}",
                where=_WHERE,
                remedy="The file is damaged; restore it from where the model came from",
            ) from None


@contextmanager
def library_errors(replace: Callable[[str], UserError]) -> Iterator[None]:
    """Replace the library's exceptions and panics in the context by one of Heedful's errors.

    Args:
        replace: function from the library's message to the error to raise.
    """
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        # The library raises bare exceptions of its own for content it does not understand.
        if not isinstance(error, Exception) and not _is_panic(error):
            raise
        raise replace(f"{type(error).__name__}: {error}") from None


def not_unicode(texts: Sequence[str]) -> DataError:
    """Make the error about the first text that is not valid Unicode."""
    for number, text in enumerate(texts, start=1):
        for position, character in enumerate(text):
            if "\ud800" <= character <= "\udfff":
                return DataError(
                    f"Text {number} holds half a surrogate pair (U+{ord(character):04X}) at "
                    f"character {position + 1}, which is not Unicode text",
                    remedy="Read the text as UTF-8",
                )
    return DataError("The text is not Unicode text", remedy="Pass strings, read as UTF-8")


def _is_panic(error: BaseException) -> bool:
    """Return True if an error is pyo3's PanicException, a class that no module exports."""
    return type(error).__name__ == "PanicException"


def _patterns(state: Any) -> Iterator[str]:
    """Yield the regular expressions in a serialisation."""
    if isinstance(state, Mapping):
        for key, value in state.items():
            if key == "Regex" and isinstance(value, str):
                yield value
            elif key not in ("vocab", "merges"):  # the largest parts, which hold none
                yield from _patterns(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from _patterns(value)


def _with_timeout(seconds: float, function: Callable[[], T]) -> T:
    """Call a function that releases the interpreter's lock, and wait for it for a limited time.

    Nothing can stop the function's thread, which ends with the process.

    Raises:
        TimeoutError: when the function takes longer.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError
    if errors:
        raise errors[0]
    return results[0]


def added_token(content: str, *, normalized: bool) -> AddedToken:
    """Make a token to add.

    Args:
        content: spelling of the token in converted text.
        normalized: search in the text after its normalisation instead of before.
    """
    return AddedToken(content, single_word=is_word(content), normalized=normalized)


def is_word(token: str) -> bool:
    """Return True if a token is only recognised as a whole word: "art", but not in "party".

    Such a token begins and ends with letters that have a case, or with digits. Scripts without case
    may have no spaces between words, and signs need no space around them.
    """
    ends = (token[0], token[-1])
    return all(end.isalnum() and unicodedata.category(end) != "Lo" for end in ends)


def with_tokens(
    state: Mapping[str, Any], tokens: Sequence[AddedToken], *, first: int | None
) -> dict[str, Any]:
    """Return the library's serialisation with more tokens; known tokens are left out.

    Args:
        state: serialisation of a tokenizer, as nested plain data.
        tokens: tokens to add, in the order of their ids.
        first: required id of the first token; None if the ids are assigned elsewhere.

    Raises:
        ConfigError: when the ids of the tokenizer have gaps, so that the id would differ.
    """
    library = tokenizers.Tokenizer.from_str(json.dumps(state))
    for token in tokens:
        if library.token_to_id(token.content) is not None:
            continue
        library.add_tokens([token])
        if first is None:
            continue
        if library.token_to_id(token.content) != first:
            raise ConfigError(
                "This tokenizer's ids have gaps, so that no token can be put after them",
                where="tokenizer.extend",
                remedy="Leave it empty",
            )
        first += 1
    return {**state, "added_tokens": json.loads(library.to_str())["added_tokens"]}


def adds_nothing_but_case(normalizer: normalizers.Normalizer | None, token: str) -> bool:
    """Return True if a token can be searched for in normalised text, so that case is ignored.

    Some normalisers put a space mark before a text, which would change the token.
    """
    if normalizer is None:
        return False
    return str(normalizer.normalize_str(token)).casefold() == token.casefold()


def added_spans(library: Library, text: str, original: str) -> Iterator[str | int]:
    """Yield the ids of the added tokens in a text, and the parts of the text between them.

    Args:
        library: tokenizer with added tokens.
        text: text after Heedful's own conversions.
        original: text before these conversions, for error messages.
    """
    added = library.tokenizer.get_added_tokens_decoder()
    done = 0
    for id, (start, stop) in zip(*library.encode_spans(text, original), strict=True):
        if id in added:
            yield text[done:start]
            yield id
            done = stop
    yield text[done:]

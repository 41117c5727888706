"""Output that fits a JSON Schema or a regular expression: at each step only some tokens fit.

The library `llguidance` (MIT licence) keeps the place in the grammar. It works on bytes, so a
token of any tokenizer is its bytes (`heedful.text.token_bytes`). Schemas are data of others: the
library fetches nothing, and its limits bound the time of a grammar and of a step.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from heedful.errors import ConfigError, ModelError
from heedful.search.grammar import Grammar, Ruled, RuledModel
from heedful.search.search_settings import GenerationSettings
from heedful.search.step_model import Continuation, StepModel
from heedful.text.field_tokenizer import FieldTokenizer
from heedful.text.token_bytes import token_bytes

ANY_OBJECT = '{"type": "object"}'
"""Schema of any JSON object."""

MOST_CHARACTERS = 200_000
"""Most characters of a schema or an expression; the longest of JSONSchemaBench has 190,000."""

_MOST_SYMBOLS = 100_000


class OutputRules:
    """`TokenRules` of a grammar over the tokens of a `Continuation`.

    Place 0 is before the first token, place 1 after the end. Every other place is a prefix of the
    output with a matcher of its own, so that a search may step twice from one place.

    Args:
        tokenizer: tokenizer of the model.
        grammar: grammar in the library's form.
        end: id of the end token, which follows the vocabulary of the model.
        where: name of the schema or the expression, for error messages.

    Raises:
        ConfigError: when the library refuses the grammar, or the tokenizer has no bytes.
    """

    def __init__(self, tokenizer: Any, grammar: str, end: int, where: str) -> None:
        self._library = _library()
        self._end, self._where = end, where
        words = _words(tokenizer, end)
        matcher = self._library.LLMatcher(words, grammar, limits=_limits(), log_level=0)
        if matcher.is_error():
            raise _refused(matcher.get_error(), where)
        self._matchers: list[Any] = [matcher, None]
        self._allowed: dict[int, Tensor] = {1: self._only_end()}
        self._moves: dict[tuple[int, int], int] = {}

    def after(self, places: Tensor, tokens: Tensor) -> Tensor:
        """Return the places [...] to which tokens [...] lead."""
        pairs = zip(places.flatten().tolist(), tokens.flatten().tolist(), strict=True)
        moved = [self._after(place, token) for place, token in pairs]
        return torch.tensor(moved, device=places.device).view(places.shape)

    def apply(self, logits: Tensor, places: Tensor) -> Tensor:
        """Return logits [B, W, V] with −∞ for tokens that are impossible at places [B, W]."""
        rows = [self._mask(place) for place in places.flatten().tolist()]
        allowed = torch.stack(rows).view(logits.shape).to(logits.device)
        ruled = logits.masked_fill(~allowed, -math.inf)
        # A text that is cut at its longest length may end anywhere: only the end token is left.
        cut = ruled.amax(-1) == -math.inf
        ruled[..., self._end] = torch.where(cut, logits[..., self._end], ruled[..., self._end])
        return ruled

    def _after(self, place: int, token: int) -> int:
        # The begin token of a search is the end token's id: it leads from place 0 to the start.
        if place == 0:
            return self._moved(0, None)
        if token == self._end or not self._mask(place)[token]:
            return 1  # ended, or a hypothesis without probability, which no search returns
        return self._moved(place, token)

    def _moved(self, place: int, token: int | None) -> int:
        key = (place, -1 if token is None else token)
        if key not in self._moves:
            matcher = self._matchers[place].deep_copy()
            if token is not None and not matcher.consume_token(token):
                raise self._stuck(matcher)
            self._moves[key] = len(self._matchers)
            self._matchers.append(matcher)
        return self._moves[key]

    def _mask(self, place: int) -> Tensor:
        """Return the flags [V] of the tokens that are possible at a place."""
        if place not in self._allowed:
            matcher = self._matchers[place]
            bias = bytearray(matcher.compute_logit_bias())
            mask = torch.frombuffer(bias, dtype=torch.uint8).bool()
            # Where the vocabulary lacks a byte, the library offers the end of an unfinished text.
            mask[self._end] &= matcher.is_accepting()
            if not mask.any():
                raise self._stuck(matcher)
            self._allowed[place] = mask
        return self._allowed[place]

    def _stuck(self, matcher: Any) -> Exception:
        if "TooComplex" in matcher.stop_reason():
            return _refused(matcher.get_error(), self._where)
        return ModelError(
            "No token of the model's vocabulary continues the output that is asked for",
            where=self._where,
            remedy="Take a model whose vocabulary has the characters of such an output",
        )

    def _only_end(self) -> Tensor:
        mask = torch.zeros(self._end + 1, dtype=torch.bool)
        mask[self._end] = True
        return mask


class RuledOutput(RuledModel[Any]):
    """A `StepModel` whose output follows a grammar, which says nothing about the prompt."""

    def start(self, source: Tensor, source_positions: Tensor) -> Ruled[Any]:
        """Run the model over prompts [B, L]; see `StepModel`."""
        places = source.new_zeros((len(source), 1))
        return Ruled(self.model.start(source, source_positions), places)


def ruled_output(
    continuation: Continuation[Any], settings: GenerationSettings, tokenizer: Any
) -> Any:
    """Return a model that writes only what the settings' schema or expression allows.

    Args:
        continuation: model of the prompts.
        settings: settings with `json_schema` or `regex`, or neither.
        tokenizer: tokenizer of the model; None for a model without text.

    Raises:
        ConfigError: when the grammar is refused, the library is missing, or the settings
            contradict a grammar.
        ModelError: when the model's vocabulary cannot write such an output.
    """
    schema, regex = settings.json_schema, settings.regex
    if not schema and not regex:
        return continuation
    if tokenizer is None:
        raise ConfigError(
            "The form of an output is one of text, and this model writes records",
            where="json_schema" if schema else "regex",
            remedy="Leave it out: records follow the fields of the model",
        )
    grammar = schema_grammar(schema) if schema else regex_grammar(regex)
    where = "json_schema" if schema else "regex"
    return RuledOutput(continuation, OutputRules(tokenizer, grammar, continuation.end, where))


def schema_grammar(schema: str, where: str = "json_schema") -> str:
    """Return the library's grammar of a JSON Schema.

    Args:
        schema: text of the schema.
        where: name of the schema, for error messages.

    Raises:
        ConfigError: when it is no JSON, no schema, too large, or has keywords that cannot be
            followed.
    """
    _check_size(schema, where)
    try:
        content = json.loads(schema)
    except json.JSONDecodeError as error:
        place = f"{where}:{error.lineno}"
        raise ConfigError(
            f"The schema is no JSON: {error.msg} at column {error.colno}",
            where=place,
            remedy="Correct the line",
        ) from None
    except RecursionError:
        raise ConfigError("The schema is nested too deeply", where=where) from None
    # One space at most: with any white space a small model may write nothing else for ever.
    options = {"whitespace_flexible": True, "whitespace_pattern": " ?"}
    matcher = _library().LLMatcher
    try:
        grammar: str = matcher.grammar_from_json_schema(json.dumps(content), overrides=options)
    except ValueError as error:
        raise _refused(str(error), where) from None
    return _checked(grammar, where, schema)


def regex_grammar(regex: str, where: str = "regex") -> str:
    """Return the library's grammar of a regular expression, in the syntax of Rust's `regex`.

    Args:
        regex: expression that the whole output matches.
        where: name of the expression, for error messages.

    Raises:
        ConfigError: when the expression is refused or too long.
    """
    _check_size(regex, where)
    return _checked(_library().LLMatcher.grammar_from_regex(regex), where, regex)


def _checked(grammar: str, where: str, source: str) -> str:
    message = _library().LLMatcher.validate_grammar(grammar, limits=_limits())
    # Warnings name keywords without an effect; the output would not be what is asked for.
    if message:
        raise _refused(message, _place(message, where, source))
    return grammar


def _place(message: str, where: str, source: str) -> str:
    """Return the line of a schema's key or value that a message quotes, if there is one."""
    words = message.replace(":", " ").replace("[", " ").replace("]", " ").split()
    for word in reversed(words):
        quoted = json.dumps(word.strip("\"'"))
        if quoted in source:
            return f"{where}:{source[: source.index(quoted)].count(chr(10)) + 1}"
    return where


def _check_size(text: str, where: str) -> None:
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(
            f"{len(text):,} characters are more than the {MOST_CHARACTERS:,} that are read",
            where=where,
            remedy="Give a smaller schema or expression",
        )


def _refused(message: str, where: str) -> ConfigError:
    lines = [line.strip() for line in message.splitlines() if line.strip(" ^")]
    # The reason of an expression comes after its picture.
    reasons = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return ConfigError(
        f"The form of the output cannot be followed: {(reasons or lines or ['unknown'])[0]}",
        where=where,
        remedy="Use the keywords and expressions that llguidance documents, without look-around",
    )


def _limits() -> Any:
    """Return the limits of a grammar: about a second to build, 20 ms for a step."""
    return _library().LLParserLimits(max_grammar_size=_MOST_SYMBOLS, verbose_errors=False)


def _library() -> Any:
    try:
        import llguidance
    except ModuleNotFoundError:
        raise ConfigError(
            "Output in a given form needs the package llguidance, which is not installed",
            remedy="Install it with: pip install 'heedful[structured]'",
        ) from None
    return llguidance


# A vocabulary of 50,000 tokens takes 0.1 s, and a server's requests share it.
@functools.lru_cache(maxsize=4)
def _words(tokenizer: Any, end: int) -> Any:
    """Return the library's view of a tokenizer with the end token after `end` others."""
    library = _library()
    contents = token_bytes(tokenizer)
    words = [*contents[:end], *[b""] * (end - len(contents)), b"</s>"]
    wrapper = library.TokenizerWrapper(_Words(words, end))
    return library.LLTokenizer(wrapper, n_vocab=end + 1, eos_token=end)


class _Words:
    """A tokenizer in the form that the library reads."""

    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], end: int) -> None:
        self.tokens, self.eos_token_id, self.special_token_ids = tokens, end, [end]
        self._ids = {token: id for id, token in enumerate(tokens) if token}
        self._longest = max(map(len, self._ids))

    def __call__(self, text: bytes | str) -> list[int]:
        """Return the ids of bytes that the grammar leaves no choice about, longest tokens first."""
        rest = text.encode() if isinstance(text, str) else text
        ids: list[int] = []
        while rest:
            sizes = range(min(self._longest, len(rest)), 0, -1)
            size = next((size for size in sizes if rest[:size] in self._ids), 0)
            if not size:  # the vocabulary lacks a byte: the library finds no token either
                break
            ids.append(self._ids[rest[:size]])
            rest = rest[size:]
        return ids


def record_model(
    model: StepModel[Any], rules: FieldTokenizer, vocabulary: int, device: torch.device
) -> RuledModel[Any]:
    """Return a model that writes records only.

    Args:
        model: model of the sequences.
        rules: fields of the records.
        vocabulary: vocabulary size V.
        device: device of the search.
    """
    return RuledModel(model, Grammar(rules.states, vocabulary, rules.bos, device))

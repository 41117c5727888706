"""Raw text in, what an encoder's heads say about it out: BERT and its kin with a tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypedDict, TypeVar, Unpack

import torch
from torch import Tensor

from heedful.errors import ConfigError, DataError, ModelError
from heedful.models.encoder import EncoderModel
from heedful.models.model_spec import HeadSpec
from heedful.pipelines.encoder_input import (
    BATCH_TOKENS,
    Encoded,
    EncoderInput,
    FramedWindow,
    WindowAnswer,
    check_length,
    choose,
    encode,
    frame,
    longest_input,
    parts_of,
    read_answer,
    word_pieces,
)
from heedful.pipelines.predictions import (
    NO_ANSWER,
    Answer,
    Candidate,
    Label,
    TokenLabel,
)
from heedful.pipelines.text_pipeline import TextPipeline

Key = TypeVar("Key")

MASK = "[MASK]"
"""What stands for a hidden token in a text, whatever a model calls it."""


class EncodingOptions(TypedDict, total=False):
    """Options of every method of `EncoderPipeline`; none changes a prediction.

    Args:
        batch_size: texts encoded together, instead of `batch_tokens`.
        batch_tokens: positions encoded together, padding counted; 4096 if unset.
        first_line: number of the first text in errors; 1 if unset.
        on_batch: called after each batch.
    """

    batch_size: int | None
    batch_tokens: int
    first_line: int
    on_batch: Callable[[], None]


class EncoderPipeline(TextPipeline[EncoderModel]):
    """An encoder of raw text and its heads.

    A text that is empty, or only white space, gets an empty result.
    """

    kind = EncoderModel
    refusal = "This model is no encoder of text"
    remedy = "Give an encoder, such as an imported BERT or RoBERTa"

    def require(self, head: str) -> None:
        """Refuse what the model has no head for.

        Args:
            head: its kind: `masked_lm`, `sequence`, `token` or `span`.

        Raises:
            ModelError: naming the heads it has.
        """
        if head in self.model.heads:
            return
        heads = ", ".join(self.model.heads) or "none"
        raise ModelError(
            f"The model has no {head} head; it has: {heads}",
            remedy="Give a model that was trained for this task",
        )

    def fill(
        self,
        texts: Sequence[str],
        *,
        top: int = 5,
        **options: Unpack[EncodingOptions],
    ) -> list[list[list[Candidate]]]:
        """Candidates for each mask.

        Args:
            texts: with at least one [MASK] each; an imported tokenizer's own spelling also works.
            top: candidates for each mask.
            **options: see `EncodingOptions`.

        Returns:
            For each text, for each mask in its order, candidates, the most probable first.

        Raises:
            ModelError: when the model cannot fill masks.
            ConfigError: when no candidates are asked for.
            DataError: naming the line that has no mask or is too long.
        """
        self.require("masked_lm")
        if top < 1:
            raise ConfigError("At least one candidate must be asked for", where=f"top = {top}")
        mask = self.tokenizer.mask
        if mask is None:
            raise ModelError(
                "The model's tokenizer has no token that hides another",
                remedy="Give a model that was trained to fill masks, with its tokenizer files",
            )
        items: dict[int, EncoderInput] = {}
        for number, text in _spoken(texts):
            item = frame(self.tokenizer, self.tokenizer.encode_masked(text, MASK))
            if mask not in item.ids:
                raise DataError(
                    f"There is no {MASK} to fill",
                    where=_line(number, options),
                    remedy=f"Write {MASK} for a word",
                )
            check_length(self.model.spec, item, _line(number, options))
            items[number] = item

        def at_masks(batch: Encoded) -> Sequence[Tensor]:
            masks = (batch.ids == mask) & (batch.positions >= 0)
            logits = self.model.masked_lm_logits(batch.states[masks])
            return torch.split(logits, masks.sum(1).tolist())

        results: list[list[list[Candidate]]] = [[] for _ in texts]
        for number, logits in self._scores(items, options, at_masks):
            results[number] = list(self._best(logits, top))
        return results

    def classify(
        self,
        texts: Sequence[str | tuple[str, str]],
        **options: Unpack[EncodingOptions],
    ) -> list[list[Label]]:
        """Labels of whole texts, or of pairs of texts.

        Args:
            texts: a text or two each.
            **options: see `EncodingOptions`.

        Returns:
            For each text all labels, the most probable first.

        Raises:
            ModelError: when the model has no labels for whole texts.
            DataError: naming the line that is too long, or is two texts where one is taken.
        """
        self.require("sequence")
        items: dict[int, EncoderInput] = {}
        for number, _ in _spoken([t if isinstance(t, str) else "".join(t) for t in texts]):
            text = texts[number]
            parts = self.tokenizer.encode_batch([text] if isinstance(text, str) else text)
            items[number] = frame(self.tokenizer, *parts)
            check_length(self.model.spec, items[number], _line(number, options))
        names = self.labels("sequence")
        results: list[list[Label]] = [[] for _ in texts]
        for number, logits in self._scores(
            items, options, lambda b: self.model.sequence_logits(b.states, b.positions)
        ):
            pairs = zip(names, logits.softmax(-1).tolist(), strict=True)
            labels = [Label(name, probability) for name, probability in pairs]
            results[number] = sorted(labels, key=lambda label: -label.probability)
        return results

    def tag(
        self,
        texts: Sequence[str | Sequence[str]],
        **options: Unpack[EncodingOptions],
    ) -> list[list[TokenLabel]]:
        """A label for each word.

        A text that is longer than the model can read is read in windows that overlap; a word has
        the label of the window that shows most of what stands around it.

        Args:
            texts: to be tagged: strings, in which white space separates words, or lists of words.
            **options: see `EncodingOptions`.

        Returns:
            For each text its words, with the label of their first piece.

        Raises:
            ModelError: when the model has no labels for tokens.
            DataError: when the model can read nothing but special tokens.
        """
        self.require("token")
        words = [text.split() if isinstance(text, str) else list(text) for text in texts]
        pieces: dict[int, list[int | None]] = {}
        parts: dict[tuple[int, int], FramedWindow] = {}
        for number, row in enumerate(words):
            if row:
                ids, pieces[number] = word_pieces(self.tokenizer, row)
                parts |= self._parts(number, ids, options)
        names = self.labels("token")
        results = [[TokenLabel(word, None, None) for word in row] for row in words]
        for key, logits in self._scores(
            {key: part.input for key, part in parts.items()},
            options,
            lambda batch: self.model.token_logits(batch.states),
        ):
            number, part = key[0], parts[key]
            best = logits.softmax(-1).max(-1)
            values, indices = best.values.tolist(), best.indices.tolist()
            for place, piece in enumerate(pieces[number]):
                if piece is not None and part.window.own_start <= piece < part.window.own_end:
                    at = piece + part.shift
                    label = TokenLabel(words[number][place], names[indices[at]], values[at])
                    results[number][place] = label
        return results

    def answer(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        max_answer: int = 30,
        unanswerable: bool | None = None,
        **options: Unpack[EncodingOptions],
    ) -> list[Answer]:
        """The part of each context that answers its question.

        A context that is longer than the model can read with its question is read in windows that
        overlap, and the most probable answer of all windows is taken.

        Args:
            pairs: a question and a context each.
            max_answer: most tokens of an answer.
            unanswerable: whether an answer may be empty, which the first token stands for; as the
                model was trained if unset.
            **options: see `EncodingOptions`.

        Raises:
            ModelError: when the model cannot answer, or takes no pairs of texts.
            ConfigError: when no answer may be as short as asked for.
            DataError: naming the line that has no question, or one that leaves no room.
        """
        self.require("span")
        if max_answer < 1:
            raise ConfigError("An answer has a token at least", where=f"max_answer = {max_answer}")
        if unanswerable is None:
            head = self._head("span")
            unanswerable = head.kind == "span" and head.unanswerable
        parts: dict[tuple[int, int], FramedWindow] = {}
        spans: dict[int, list[tuple[int, int]]] = {}
        for number, context in _spoken([context for _, context in pairs]):
            question = pairs[number][0]
            if not question.strip():
                raise DataError("There is no question", where=_line(number, options))
            ids, spans[number] = self.tokenizer.encode_spans(context)
            if ids:  # else nothing in the context is anything to the tokenizer
                parts |= self._parts(number, ids, options, self.tokenizer.encode(question))
        readings: dict[int, list[WindowAnswer]] = {number: [] for number in spans}
        for key, logits in self._scores(
            {key: part.input for key, part in parts.items()},
            options,
            lambda batch: self.model.span_logits(batch.states),
        ):
            readings[key[0]].append(read_answer(logits, parts[key], max_answer))
        results = [NO_ANSWER for _ in pairs]
        for number, several in readings.items():
            if several:
                context = pairs[number][1]
                results[number] = choose(several, context, spans[number], unanswerable=unanswerable)
        return results

    def _parts(
        self,
        number: int,
        ids: Sequence[int],
        options: EncodingOptions,
        before: Sequence[int] | None = None,
    ) -> dict[tuple[int, int], FramedWindow]:
        """The windows of a text under its number and theirs."""
        longest = longest_input(self.model.spec)
        where = _line(number, options)
        parts = parts_of(self.tokenizer, ids, longest=longest, where=where, before=before)
        return {(number, place): part for place, part in enumerate(parts)}

    def _head(self, kind: str) -> HeadSpec:
        return next(head for head in self.model.spec.heads if head.kind == kind)

    def labels(self, kind: str) -> tuple[str, ...]:
        """The labels of a head that the model has: `sequence` or `token`."""
        return self._head(kind).class_names

    def _scores(
        self,
        items: Mapping[Key, EncoderInput],
        options: EncodingOptions,
        head: Callable[[Encoded], Iterable[Tensor]],
    ) -> Iterator[tuple[Key, Tensor]]:
        """The output of a head for each input, in float32.

        Args:
            items: the inputs under their names.
            options: as the methods take them.
            head: a batch to a tensor for each of its rows.
        """
        keys = list(items)
        batches = encode(
            self.model,
            list(items.values()),
            padding=self.tokenizer.pad,
            batch_size=options.get("batch_size"),
            batch_tokens=options.get("batch_tokens", BATCH_TOKENS),
        )
        while True:
            with self.computing():  # not while whoever reads the scores is at work
                batch = next(batches, None)
                scores = [] if batch is None else [row.float() for row in head(batch)]
            if batch is None:
                return
            options.get("on_batch", lambda: None)()
            yield from zip([keys[row] for row in batch.numbers], scores, strict=True)

    def _best(self, logits: Tensor, top: int) -> Iterator[list[Candidate]]:
        """The candidates of each row [V]; rows of the table that are no piece are none."""
        probabilities = logits.softmax(-1)[:, : self.tokenizer.size]
        best = probabilities.sort(dim=-1, descending=True, stable=True)
        for values, ids in zip(
            best.values[:, :top].tolist(), best.indices[:, :top].tolist(), strict=True
        ):
            tokens = self.tokenizer.pieces(ids)
            yield [Candidate(token, p) for token, p in zip(tokens, values, strict=True)]


def _spoken(texts: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Texts that say something, with their numbers."""
    return ((number, text) for number, text in enumerate(texts) if text.strip())


def _line(number: int, options: EncodingOptions) -> str:
    return f"line {options.get('first_line', 1) + number}"

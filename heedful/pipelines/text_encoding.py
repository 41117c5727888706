"""Pipeline of encoders such as BERT: mask filling, classification, tagging, question answering."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self, TypedDict, TypeVar, Unpack, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heedful.errors import ConfigError, DataError, ModelError
from heedful.interop.sentence_pooling import pooling_of
from heedful.models.checkpoint import load_model
from heedful.models.decoder_as_encoder import load_reader
from heedful.models.encoder import EncoderModel, first_states, last_states
from heedful.models.encoder_spec import HeadSpec
from heedful.pipelines.batching import list_of_texts
from heedful.pipelines.encoder_input import (
    BATCH_TOKENS,
    MASK,
    Encoded,
    EncoderInput,
    FramedWindow,
    WindowAnswer,
    check_length,
    check_pairs,
    choose,
    encode,
    frame,
    longest_input,
    parts_of,
    read_answer,
    word_tokens,
)
from heedful.pipelines.predictions import (
    NO_ANSWER,
    Answer,
    Candidate,
    Label,
    TokenLabel,
)
from heedful.pipelines.text_pipeline import TextPipeline, checked
from heedful.text.chat_template import ChatTemplate, Messages, encode_whole

Key = TypeVar("Key")

Pooling = Literal["first", "last", "mean", "max"]
"""The vector of a text: of its first or last token, or the mean or maximum over its tokens."""


class EncodingOptions(TypedDict, total=False):
    """Options of every method of `EncoderPipeline`; none changes a prediction.

    Args:
        batch_size: texts encoded together, instead of `batch_tokens`.
        batch_tokens: positions encoded together, padding counted; 4096 if unset.
        first_line: number of the first text in errors; 1 if unset.
        on_batch: function called after each batch.
    """

    batch_size: int | None
    batch_tokens: int
    first_line: int
    on_batch: Callable[[], None]


class EncoderPipeline(TextPipeline[EncoderModel]):
    """An encoder of raw text and its heads.

    A text that is empty, or only white space, gets an empty result.
    """

    pooling: Mapping[str, Any] = MappingProxyType({})
    """Pooling that the model was published with, from `read_pooling`; empty without."""

    kind = EncoderModel
    refusal = "This model is no encoder of text"
    remedy = "Give an encoder, such as an imported BERT or RoBERTa"

    @property
    def verbs(self) -> tuple[str, ...]:  # type: ignore[override]
        """The methods that its heads allow; vectors need none."""
        names = {"masked_lm": "fill", "sequence": "classify", "token": "tag", "span": "answer"}
        names["reward"] = "reward"
        heads = [head.kind for head in self.spec.heads]
        return (*(verb for head, verb in names.items() if head in heads), "embed")

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> Self:
        """Load a model directory, with its pooling; see `ModelPipeline.load`.

        A causal language model is read as an encoder without heads, which gives vectors.
        """
        read = options.pop("read", load_model)
        made = super().load(path, read=lambda path: load_reader(*read(path)), **options)
        made.pooling = pooling_of(Path(path))
        return made

    def require(self, head: str) -> None:
        """Refuse a task that the model has no head for.

        Args:
            head: kind of the head: `masked_lm`, `sequence`, `token` or `span`.

        Raises:
            ModelError: when the model lacks the head; the message lists the heads that it has.
        """
        heads = [each.kind for each in self.spec.heads]
        if head in heads:
            return
        raise ModelError(
            f"The model has no {head} head; it has: {', '.join(heads) or 'none'}",
            remedy="Give a model that was trained for this task",
        )

    def fill(
        self,
        texts: Sequence[str],
        *,
        top: int = 5,
        **options: Unpack[EncodingOptions],
    ) -> list[list[list[Candidate]]]:
        """Return candidates for each mask.

        Args:
            texts: texts with at least one [MASK]; an imported tokenizer's own spelling also works.
            top: number of candidates for each mask.
            **options: see `EncodingOptions`.

        Returns:
            For each text the candidates of each mask, the most probable first.

        Raises:
            ModelError: when the model cannot fill masks.
            ConfigError: when `top` is below 1.
            DataError: when a line has no mask or is too long; the line is named.
        """
        self.require("masked_lm")
        texts = list_of_texts(texts, "texts")
        if top < 1:
            raise ConfigError("At least one candidate must be asked for", where=f"top = {top}")
        mask = self.tokenizer.mask
        if mask is None:
            raise ModelError(
                "The model's tokenizer has no token that hides another",
                remedy="Give a model that was trained to fill masks, with its tokenizer files",
            )
        items: dict[int, EncoderInput] = {}
        for number, text in _non_blank(texts):
            item = frame(self.tokenizer, self.tokenizer.encode_masked(text, MASK))
            if mask not in item.ids:
                raise DataError(
                    f"There is no {MASK} to fill",
                    where=_line(number, options),
                    remedy=f"Write {MASK} for a word",
                )
            check_length(self.spec, item, _line(number, options))
            items[number] = item

        def at_masks(model: EncoderModel, batch: Encoded) -> Sequence[Tensor]:
            # Padding may have the mask's id, so positions decide which tokens are real.
            masks = (batch.ids == mask) & (batch.positions >= 0)
            # The head runs on masked tokens only: logits [B, L, V] of all tokens may not fit into
            # memory.
            logits = model.masked_lm_logits(batch.states[masks])
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
        """Classify texts or pairs of texts.

        Args:
            texts: texts, or pairs of texts.
            **options: see `EncodingOptions`.

        Returns:
            For each text all labels, the most probable first.

        Raises:
            ModelError: when the model has no labels for whole texts, or takes no pairs.
            DataError: when a line is too long; it is named.
        """
        self.require("sequence")
        texts = list_of_texts(texts, "texts", kinds=(str, tuple, list))
        items: dict[int, EncoderInput] = {}
        for number, _ in _non_blank([t if isinstance(t, str) else "".join(t) for t in texts]):
            text = texts[number]
            # A pair is framed as one input with two segments.
            parts = self.tokenizer.encode_batch([text] if isinstance(text, str) else text)
            items[number] = frame(self.tokenizer, *parts)
            check_length(self.spec, items[number], _line(number, options))
        names = self.labels("sequence")
        results: list[list[Label]] = [[] for _ in texts]
        for number, logits in self._scores(
            items, options, lambda m, b: m.sequence_logits(b.states, b.positions)
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
        """Label each word of texts.

        A text that is too long for the model is read in overlapping windows; a word gets its label
        from the window with most of its context.

        Args:
            texts: strings with words separated by white space, or lists of words.
            **options: see `EncodingOptions`.

        Returns:
            For each text its words, each with the label of its first token.

        Raises:
            ModelError: when the model has no labels for tokens.
            DataError: when the model can read nothing but special tokens.
        """
        self.require("token")
        texts = list_of_texts(texts, "texts", kinds=(str, tuple, list))
        words = [text.split() if isinstance(text, str) else list(text) for text in texts]
        first_tokens: dict[int, list[int | None]] = {}
        parts: dict[tuple[int, int], FramedWindow] = {}
        for number, row in enumerate(words):
            if row:
                ids, first_tokens[number] = word_tokens(self.tokenizer, row)
                check_pairs(self.spec.encoder.exact_text, len(ids), _line(number, options))
                parts |= self._parts(number, ids, options)
        names = self.labels("token")
        results = [[TokenLabel(word, None, None) for word in row] for row in words]
        for key, logits in self._scores(
            {key: part.input for key, part in parts.items()},
            options,
            lambda model, batch: model.token_logits(batch.states),
        ):
            number, part = key[0], parts[key]
            best = logits.softmax(-1).max(-1)
            values, indices = best.values.tolist(), best.indices.tolist()
            for place, token in enumerate(first_tokens[number]):
                # Each token belongs to one window, the one with most of its context.
                if token is not None and part.window.own_start <= token < part.window.own_end:
                    at = token + part.shift
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
        """Answer questions by spans of their contexts.

        A context that is too long for the model is read in overlapping windows, and the most
        probable answer of all windows is returned.

        Args:
            pairs: pairs of a question and a context.
            max_answer: maximum number of tokens of an answer.
            unanswerable: True to allow empty answers; as the model was trained if unset.
            **options: see `EncodingOptions`.

        Raises:
            ModelError: when the model cannot answer questions, or takes no pairs of texts.
            ConfigError: when `max_answer` is below 1.
            DataError: when a line has no question, or one that leaves no room for its context; the
                line is named.
        """
        self.require("span")
        if max_answer < 1:
            raise ConfigError("An answer has a token at least", where=f"max_answer = {max_answer}")
        if unanswerable is None:
            # Models trained on SQuAD 1 always answer, those trained on SQuAD 2 need not.
            head = self._head("span")
            unanswerable = head.kind == "span" and head.unanswerable
        parts: dict[tuple[int, int], FramedWindow] = {}
        spans: dict[int, list[tuple[int, int]]] = {}
        for number, context in _non_blank([context for _, context in pairs]):
            question = pairs[number][0]
            if not question.strip():
                raise DataError("There is no question", where=_line(number, options))
            ids, spans[number] = self.tokenizer.encode_spans(context)
            if ids:  # a context of control characters only has no tokens
                parts |= self._parts(number, ids, options, self.tokenizer.encode(question))
        readings: dict[int, list[WindowAnswer]] = {number: [] for number in spans}
        for key, logits in self._scores(
            {key: part.input for key, part in parts.items()},
            options,
            lambda model, batch: model.span_logits(batch.states),
        ):
            readings[key[0]].append(read_answer(logits, parts[key], max_answer))
        results = [NO_ANSWER for _ in pairs]
        for number, several in readings.items():
            if several:
                context = pairs[number][1]
                results[number] = choose(several, context, spans[number], unanswerable=unanswerable)
        return results

    def reward(
        self, conversations: Sequence[Messages], **options: Unpack[EncodingOptions]
    ) -> list[float]:
        """Return the reward of each conversation, of which differences alone have a meaning.

        Args:
            conversations: lists of messages, each with `role` and `content`; the last is an answer.
            **options: see `EncodingOptions`.

        Raises:
            ModelError: when the model predicts no rewards.
            DataError: when a conversation has no answer, is too long, or is refused by the model's
                template; its line is named.
        """
        self.require("reward")
        template, items = ChatTemplate(self.chat), dict[int, EncoderInput]()
        for number, messages in enumerate(conversations):
            if not messages or messages[-1]["role"] != "assistant":
                raise DataError("There is no answer to reward", where=_line(number, options))
            text, own = template.with_answers(messages, _line(number, options))
            # The tokens of training, where the frame is the template's own.
            ids, _ = encode_whole(self.tokenizer, text, own)
            items[number] = EncoderInput(tuple(ids), 0, len(ids))
            check_length(self.spec, items[number], _line(number, options))
        rewards = [0.0] * len(items)
        for number, reward in self._scores(
            items, options, lambda model, batch: model.rewards(batch.states, batch.positions)
        ):
            rewards[number] = float(reward)
        return rewards

    def embed(
        self,
        texts: Sequence[str],
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        **options: Unpack[EncodingOptions],
    ) -> npt.NDArray[np.float32]:
        """Return a vector for each text: its last states, pooled (Reimers 2019).

        Args:
            texts: texts of any kind; a blank one has a vector of zeros.
            pooling: mean or maximum over the tokens, special ones included, or the first or last
                token; as the model was published with if unset, else the mean.
            normalize: division by the length, so that a dot product is the cosine; as published
                if unset.
            **options: see `EncodingOptions`.

        Returns:
            [texts, D] float32.

        Raises:
            ModelError: when the model was published with vectors that Heedful cannot make.
            DataError: when a line is too long; it is named.
        """
        if pooling is None:
            if "refusal" in self.pooling:
                raise ModelError(
                    self.pooling["refusal"], remedy="Name a pooling: first, last, mean, max"
                )
            pooling = self.pooling.get("mode", "mean")
        if pooling not in get_args(Pooling):
            raise ConfigError(
                f"There is no pooling {pooling!r}",
                where="pooling",
                remedy=f"Known: {', '.join(get_args(Pooling))}",
            )
        texts = list_of_texts(texts, "texts")
        items: dict[int, EncoderInput] = {}
        for number, text in _non_blank(texts):
            items[number] = frame(self.tokenizer, self.tokenizer.encode(text))
            check_length(self.spec, items[number], _line(number, options))

        def pooled(model: EncoderModel, batch: Encoded) -> Tensor:
            states, real = batch.states.float(), (batch.positions >= 0)[..., None]
            if pooling == "first":
                return first_states(states, batch.positions)
            if pooling == "last":
                return last_states(states, batch.positions)
            if pooling == "max":
                return states.masked_fill(~real, -math.inf).amax(1)
            return states.masked_fill(~real, 0).sum(1) / real.sum(1)

        vectors = np.zeros((len(texts), self.spec.width), np.float32)
        for number, vector in self._scores(items, options, pooled):
            vectors[number] = vector.cpu().numpy()
        if self.pooling.get("normalize", False) if normalize is None else normalize:
            # A blank text has no length to divide by.
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors

    def _parts(
        self,
        number: int,
        ids: Sequence[int],
        options: EncodingOptions,
        before: Sequence[int] | None = None,
    ) -> dict[tuple[int, int], FramedWindow]:
        """Return the windows of a text by (index of the text, index of the window)."""
        longest = longest_input(self.spec)
        where = _line(number, options)
        parts = parts_of(self.tokenizer, ids, longest=longest, where=where, before=before)
        return {(number, place): part for place, part in enumerate(parts)}

    def _head(self, kind: str) -> HeadSpec:
        head: HeadSpec = next(head for head in self.spec.heads if head.kind == kind)
        return head

    def labels(self, kind: str) -> tuple[str, ...]:
        """Return the labels of the model's head of a kind, `sequence` or `token`."""
        return self._head(kind).class_names

    def _scores(
        self,
        items: Mapping[Key, EncoderInput],
        options: EncodingOptions,
        head: Callable[[EncoderModel, Encoded], Iterable[Tensor]],
    ) -> Iterator[tuple[Key, Tensor]]:
        """Yield the output of a head for each input, in float32.

        Args:
            items: inputs by key.
            options: options of the calling method.
            head: function from the model and a batch to a tensor for each of its rows.
        """
        keys, model = list(items), self.engine
        batches = encode(
            model,
            list(items.values()),
            padding=self.tokenizer.pad,
            batch_size=options.get("batch_size"),
            batch_tokens=options.get("batch_tokens", BATCH_TOKENS),
        )
        while True:
            with self.computing():  # left before each yield: the caller's code runs outside of it
                batch = next(batches, None)
                scores = [] if batch is None else [checked(row) for row in head(model, batch)]
            if batch is None:
                return
            options.get("on_batch", lambda: None)()
            yield from zip([keys[row] for row in batch.numbers], scores, strict=True)

    def _best(self, logits: Tensor, top: int) -> Iterator[list[Candidate]]:
        """Yield the `top` candidates of each row of logits [N, V]."""
        # The embedding table may have more rows than the tokenizer has tokens. Those are no
        # candidates, but the softmax includes them, as in training.
        probabilities = logits.softmax(-1)[:, : self.tokenizer.size]
        # A stable sort: tokens of equal probability have the same order on every device.
        best = probabilities.sort(dim=-1, descending=True, stable=True)
        for values, ids in zip(
            best.values[:, :top].tolist(), best.indices[:, :top].tolist(), strict=True
        ):
            tokens = self.tokenizer.pieces(ids)
            yield [Candidate(token, p) for token, p in zip(tokens, values, strict=True)]


def _non_blank(texts: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the texts that are not blank, with their indices."""
    return ((number, text) for number, text in enumerate(texts) if text.strip())


def _line(number: int, options: EncodingOptions) -> str:
    return f"line {options.get('first_line', 1) + number}"

"""Texts as a model reads them: ids with the pieces behind them, and the tensors they become."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from heedful.data.batches import pad
from heedful.decode.batching import plan_batches
from heedful.decode.encoder_input import check_length, frame
from heedful.decode.generate import generate
from heedful.decode.generation import GenerationSettings
from heedful.decode.limits import check_fits, longest_output
from heedful.decode.protocol import Specials
from heedful.decode.search import search as search_for
from heedful.decode.segments import clean
from heedful.decode.settings import SearchSettings
from heedful.decode.text_generation import prompt_ids
from heedful.errors import DataError, ModelError
from heedful.inspect.subject import Subject, looking
from heedful.models.causal_lm import CausalLM
from heedful.models.encoder import EncoderModel
from heedful.models.family import VisionSpec
from heedful.models.translator import Translator
from heedful.models.vision import VisionModel
from heedful.text.protocol import TextTokenizer

LONGEST = 4096
"""Most tokens that are looked at at once, where the model itself has no bound."""

BATCH_TOKENS = 4096
"""Positions that go through a model together when a corpus is looked at."""


@dataclass(frozen=True)
class Tokens:
    """What a stack reads.

    Args:
        ids: special tokens among them; numbers of patches for an image.
        pieces: for display.
        special: for each, whether it stands for no text.
    """

    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    special: tuple[bool, ...]

    @classmethod
    def of(cls, tokenizer: TextTokenizer, ids: Sequence[int]) -> Tokens:
        """Ids with their pieces."""
        silent = {tokenizer.pad, tokenizer.bos, tokenizer.eos}
        silent |= {*tokenizer.first, *tokenizer.last, *(tokenizer.between or ())}
        return cls(tuple(ids), tuple(tokenizer.pieces(ids)), tuple(int(id) in silent for id in ids))

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class Reading:
    """One input of a model.

    Args:
        text: the source, the text, or both texts of a pair with a tab between.
        target: the translation or continuation; None where there is none.
        encoder: what the encoder reads; None for a model without one.
        decoder: what the decoder reads; a translator's begins with the begin token.
        predicted: what a translator's decoder is to say at each token it reads: the target's
            tokens, then the end.
        second: index of the second text's first token in an encoder's pair of texts.
        image: [C, h, w] float32, for a model of images.
    """

    text: str = ""
    target: str | None = None
    encoder: Tokens | None = None
    decoder: Tokens | None = None
    predicted: Tokens | None = None
    second: int | None = None
    image: np.ndarray | None = None

    @property
    def length(self) -> int:
        """Tokens of the longer side."""
        return max(len(side) for side in (self.encoder, self.decoder) if side is not None)


def read(
    subject: Subject,
    text: str,
    target: str | None = None,
    *,
    search: SearchSettings | None = None,
) -> Reading:
    """A text as the model reads it.

    Args:
        subject: the model.
        text: a source, a text, or the first of a pair of texts.
        target: a translator's translation, its own if None; a language model's continuation, none
            if None; an encoder's second text, none if None.
        search: how the model's own output is searched for. A translator's is that of `translate`
            with these settings; a language model continues the text only if they are given.

    Raises:
        DataError: when there is no text, or it is too long to be read in one piece.
        ModelError: when the model takes no text, or no pairs of texts.
    """
    return read_all(subject, [text], None if target is None else [target], search=search)[0]


def read_all(
    subject: Subject,
    texts: Sequence[str],
    targets: Sequence[str] | None = None,
    *,
    search: SearchSettings | None = None,
) -> list[Reading]:
    """Several texts as the model reads them; see `read`.

    Raises:
        DataError: naming the text that is missing or too long, or when there are not as many
            targets as texts.
    """
    if targets is not None and len(targets) != len(texts):
        raise DataError(f"{len(targets)} targets for {len(texts)} texts")
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            raise DataError("There is no text to look at", where=f"text {number}")
    model = subject.model
    if isinstance(model, Translator):
        return _translations(subject, model, texts, targets, search)
    if isinstance(model, CausalLM):
        return _running_texts(subject, model, texts, targets, search)
    if isinstance(model, EncoderModel):
        return _encoded(subject, model, texts, targets)
    assert subject.source  # a model of images has none, and says so
    raise AssertionError(type(model))


def see(subject: Subject, image: np.ndarray) -> Reading:
    """An image as the model reads it.

    Args:
        subject: a model of images.
        image: [C, h, w], scaled as the model was trained.

    Raises:
        ModelError: when the model takes no images.
    """
    model = subject.model
    if not isinstance(model, VisionModel):
        raise ModelError("This model takes no images", remedy="Give it text, by `read`")
    side = model.spec.image_size // model.spec.patch_size
    names = [f"{row},{column}" for row in range(side) for column in range(side)]
    whole = model.spec.num_states - len(names)
    pieces = ("[CLS]",) * whole + tuple(names)
    special = (True,) * whole + (False,) * len(names)
    tokens = Tokens(tuple(range(len(pieces))), pieces, special)
    return Reading(encoder=tokens, image=np.asarray(image, dtype=np.float32))


def tensors(subject: Subject, readings: Sequence[Reading]) -> tuple[Tensor, ...]:
    """What the model's `forward` takes for readings side by side, padded on the right."""
    first = readings[0]
    if first.image is not None:
        images = np.stack([r.image for r in readings if r.image is not None])
        return (torch.from_numpy(images).to(subject.device),)
    made: list[Tensor] = []
    for name, tokenizer in (("encoder", subject.source), ("decoder", subject.target)):
        sides = [getattr(reading, name) for reading in readings]
        if sides[0] is not None:
            made += pad([side.ids for side in sides], tokenizer.pad)
    spec = subject.model.spec
    assert not isinstance(spec, VisionSpec)
    if (spec.embedding.num_segments or 1) > 1:
        second = [r.length if r.second is None else r.second for r in readings]
        made.append((made[1] >= torch.tensor(second)[:, None]).long())
    return tuple(tensor.to(subject.device) for tensor in made)


def batches(readings: Sequence[Reading], batch_tokens: int = BATCH_TOKENS) -> list[list[int]]:
    """Numbers of readings that go through a model together, of like length."""
    lengths = [reading.length for reading in readings]
    return plan_batches(lengths, width=1, batch_tokens=batch_tokens, batch_size=None)


def _translations(
    subject: Subject,
    model: Translator,
    texts: Sequence[str],
    targets: Sequence[str] | None,
    search: SearchSettings | None,
) -> list[Reading]:
    source = subject.source
    lines = [_line(text, f"text {n}") for n, text in enumerate(texts, start=1)]
    ids = source.encode_batch(lines)
    for number, row in enumerate(ids, start=1):
        where = f"text {number}"
        _check_says_something(row, where)
        _check_length(len(row), model.spec.max_length, where)
    if targets is None:
        written = _own_translations(subject, model, ids, search or SearchSettings())
        meant = [subject.target.decode(row) for row in written]
    else:
        meant = [_line(text, f"target {n}") for n, text in enumerate(targets, start=1)]
        written = subject.target.encode_batch(meant)
        for number, row in enumerate(written, start=1):
            check_fits([model.spec], row, f"target {number}")
            _check_length(len(row), None, f"target {number}")
    target = subject.target
    return [
        Reading(
            text=line,
            target=text,
            encoder=Tokens.of(source, [*source.first, *before, *source.last]),
            decoder=Tokens.of(target, [target.bos, *after]),
            predicted=Tokens.of(target, [*after, target.eos]),
        )
        for line, text, before, after in zip(lines, meant, ids, written, strict=True)
    ]


def _own_translations(
    subject: Subject, model: Translator, ids: Sequence[Sequence[int]], settings: SearchSettings
) -> list[list[int]]:
    """The best hypothesis for each source, as `translate` finds it."""
    target, source = subject.target, subject.source
    specials = Specials(pad=target.pad, bos=target.bos, eos=target.eos)
    found: dict[int, list[int]] = {}
    lengths = [len(row) + 1 for row in ids]
    plan = plan_batches(lengths, width=settings.beam, batch_tokens=BATCH_TOKENS, batch_size=None)
    for numbers in plan:
        framed = [[*source.first, *ids[n], *source.last] for n in numbers]
        rows, positions = pad(framed, source.pad)
        with looking(model), subject.precision.autocast() if subject.precision else nullcontext():
            best = search_for(
                model,
                rows.to(subject.device),
                positions.to(subject.device),
                settings,
                specials=specials,
                names=numbers,
                longest=longest_output([model.spec], settings),
            )
        found |= {
            n: list(hypotheses[0].tokens) for n, hypotheses in zip(numbers, best, strict=True)
        }
    return [found[n] for n in range(len(ids))]


def _running_texts(
    subject: Subject,
    model: CausalLM,
    texts: Sequence[str],
    targets: Sequence[str] | None,
    search: SearchSettings | None,
) -> list[Reading]:
    tokenizer = subject.source
    bounds = (model.spec.max_length, model.spec.embedding.positions.max_length)
    longest = min((bound for bound in bounds if bound is not None), default=None)
    rows = [prompt_ids(tokenizer, text) for text in texts]
    added: list[Sequence[int]] = [() for _ in texts]
    if targets is not None:
        added = list(tokenizer.encode_batch(targets))
    elif search is not None:
        settings = GenerationSettings.parse(search.plain())
        for number, row in enumerate(rows, start=1):
            _check_length(len(row), longest, f"text {number}")
        with subject.precision.autocast() if subject.precision else nullcontext():
            made = generate(model, rows, tokenizer, ends=(tokenizer.eos,), settings=settings)
        added = [each.tokens for each in made]
    readings = []
    for number, (text, row, more) in enumerate(zip(texts, rows, added, strict=True), start=1):
        whole = [*row, *more]
        _check_length(len(whole), longest, f"text {number}")
        after = None if targets is None and search is None else tokenizer.decode(more)
        readings.append(Reading(text=text, target=after, decoder=Tokens.of(tokenizer, whole)))
    return readings


def _encoded(
    subject: Subject, model: EncoderModel, texts: Sequence[str], seconds: Sequence[str] | None
) -> list[Reading]:
    tokenizer = subject.source
    readings = []
    for number, text in enumerate(texts):
        second = None if seconds is None else seconds[number]
        ids = tokenizer.encode(text)
        where = f"text {number + 1}"
        _check_says_something(ids, where)
        item = frame(tokenizer, ids, None if second is None else tokenizer.encode(second))
        check_length(model.spec, item, where)
        _check_length(len(item.ids), None, where)
        shown = text if second is None else f"{text}\t{second}"
        tokens = Tokens.of(tokenizer, item.ids)
        readings.append(Reading(text=shown, encoder=tokens, second=item.second))
    return readings


def _line(text: str, where: str) -> str:
    """A line as a translator is given it."""
    line = clean(text).strip()
    if "\n" in line:
        raise DataError(
            "The text has several lines", where=where, remedy="Look at one line at a time"
        )
    return line


def _check_says_something(ids: Sequence[int], where: str) -> None:
    if not ids:
        raise DataError("Nothing in the text is anything to the model's tokenizer", where=where)


def _check_length(length: int, longest: int | None, where: str) -> None:
    bound = min(longest or LONGEST, LONGEST)
    if length > bound:
        raise DataError(
            f"{length} tokens are more than the {bound} that are looked at in one piece",
            where=where,
            remedy="Give a shorter text",
        )

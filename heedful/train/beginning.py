"""Beginning with a trained model: its architecture, weights and tokenizer are taken whole.

The model may be one of ours or a Hugging Face directory. What a task predicts may be something
else than it did, and the vocabulary may grow; what is new begins with first weights of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from heedful.errors import ConfigError, DataError, ModelError
from heedful.interop.directory import Description, describe_any, read_any_weights
from heedful.models.build import build_model
from heedful.models.causal_lm import heeds_segments
from heedful.models.dials import contradictions, with_dropout
from heedful.models.family import (
    CausalLMSpec,
    EncoderSpec,
    HeadSpec,
    SequenceHeadSpec,
    SpanHeadSpec,
    takes_pooled,
)
from heedful.models.spec import TranslatorSpec
from heedful.models.vocabulary import extended_weights, new_tokens, with_room
from heedful.models.weights import canonical_weights, load_weights
from heedful.nn.spec import AllOfSpec, SegmentSpec
from heedful.text.pair import TokenizerPair
from heedful.text.spec import can_be_added
from heedful.train.lora import adapt
from heedful.train.randomness import mix

if TYPE_CHECKING:
    from heedful.events import Events
    from heedful.models.build import AnyModel
    from heedful.train.settings import RunSettings

TextSpec = TranslatorSpec | CausalLMSpec | EncoderSpec


def first_tokenizers(settings: RunSettings, events: Events) -> TokenizerPair | None:
    """The tokenizers of the model to begin with, with the tokens they are to get besides.

    Args:
        settings: of the run.
        events: told how many tokens are new.

    Returns:
        None where training begins with no model.

    Raises:
        ModelError: when there is no model, or it is damaged.
        ConfigError: when a setting contradicts the model, or needs one.
    """
    if settings.init is None:
        _refuse_without_model(settings)
        return None
    _, before = _described(settings)
    tokens = _extension(settings)
    if not tokens:
        return before
    source = before.source.extended(tokens)
    target = source if before.joint else before.target.extended(tokens)
    now = TokenizerPair(source, target)
    added = sum(len(found.pieces) for found in new_tokens(before, now).values())
    sides = 1 if before.joint else 2
    added = added if sides == 2 else added // 2
    known = sides * len(tokens) - added
    events.note(
        f"{added:,} tokens are added to the vocabulary"
        + (f"; {known:,} are pieces of it already" if known else "")
    )
    return now


def tokenizers_for(
    settings: RunSettings,
    tokenizers: TokenizerPair | None,
    train_new: Callable[[], TokenizerPair],
    events: Events,
) -> TokenizerPair:
    """The tokenizers of a run: its own when it is resumed, those of a model, or new ones.

    Args:
        settings: of the run.
        tokenizers: its own, if it has some.
        train_new: makes new ones of the data.
        events: who is told.

    Raises:
        ModelError: when the model to begin with is damaged.
        ConfigError: when a setting contradicts it, or needs one.
    """
    if tokenizers is None:
        tokenizers = first_tokenizers(settings, events)
    if tokenizers is None:
        events.note("Training the tokenizer")
        tokenizers = train_new()
    return tokenizers


def first_model(
    fresh: TextSpec, settings: RunSettings, tokenizers: TokenizerPair, events: Events | None = None
) -> AnyModel:
    """A run's model with its first weights, a function of the seed and of what it begins with.

    Args:
        fresh: what the dials make of it; of a model to begin with only the heads are taken.
        settings: of the run.
        tokenizers: of the run.
        events: told what of the model to begin with is left out, and what begins anew.

    Raises:
        ModelError: when there is no model to begin with, it is damaged, or of another kind.
        ConfigError: when a setting contradicts it.
    """
    torch.manual_seed(mix(settings.seed))
    if settings.init is None:
        return build_model(fresh)
    before, tokenizers_before = _described(settings)
    if type(before) is not type(fresh):
        raise ModelError(
            f"The model to begin with is of the kind {before.kind}; the task {settings.task} "
            f"trains one of the kind {fresh.kind}",
            where=settings.init,
            remedy="Begin with another model, or choose another task",
        )
    spec = with_room(_adapted(before, fresh, settings), tokenizers)
    change = _Change.between(before, spec)
    model = build_model(spec)
    weights = {
        name: tensor
        for name, tensor in read_any_weights(Path(settings.init)).items()
        if not _within(name, change.left_out)
    }
    own = canonical_weights(model)
    tokens = new_tokens(tokenizers_before, tokenizers)
    weights = extended_weights(weights, own, tokens)
    weights |= {name: tensor for name, tensor in own.items() if _within(name, change.new)}
    load_weights(model, weights, where=settings.init)
    if events is not None:
        change.tell(settings.init, events)
    if settings.lora.rank:
        adapt(model, settings.lora, new_parts=change.new, new_tokens=tokens, seed=settings.seed)
    return model


def first_labels(settings: RunSettings, kind: str, labels: Sequence[str]) -> list[str]:
    """The labels of a head: those of the model to begin with, where they hold all of the data's.

    Args:
        settings: of the run.
        kind: of the head.
        labels: of the training data.
    """
    if settings.init is not None:
        spec, _ = _described(settings)
        for head in spec.heads if isinstance(spec, EncoderSpec) else ():
            if head.kind == kind and set(labels) <= set(getattr(head, "labels", ())):
                return list(getattr(head, "labels", ()))
    return list(labels)


def first_origin(settings: RunSettings) -> Mapping[str, Any]:
    """What an export needs to know of an imported model that training begins with; or nothing."""
    return {} if settings.init is None else describe_any(Path(settings.init)).origin


def grows(settings: RunSettings) -> bool:
    """Whether the tokenizer of the model to begin with gets more tokens."""
    return bool(settings.tokenizer.extend) or settings.tokenizer.extend_file is not None


@dataclass(frozen=True)
class _Change:
    """What a task's model lacks of the one it begins with, and has besides.

    Args:
        left_out: addresses of parts.
        new: addresses of parts.
    """

    left_out: tuple[str, ...]
    new: tuple[str, ...]

    @classmethod
    def between(cls, before: TextSpec, now: TextSpec) -> _Change:
        old, new = _parts(before), _parts(now)
        return cls(
            tuple(sorted(part for part in old if new.get(part) != old[part])),
            tuple(sorted(part for part in new if new[part] != old.get(part))),
        )

    def tell(self, where: str, events: Events) -> None:
        for part in self.left_out:
            events.note(f"{part} of {where} is left out")
        for part in self.new:
            events.note(f"{part} is not in {where} and begins anew")


def _within(name: str, parts: Sequence[str]) -> bool:
    return any(name.startswith(f"{part}.") for part in parts)


def _parts(spec: TextSpec) -> dict[str, Any]:
    """The addresses of parts that another model may lack, and what each is like."""
    if not isinstance(spec, EncoderSpec):
        return {}
    parts: dict[str, Any] = {
        f"heads.{head.kind}": head.plain() | {"dropout": None, "unanswerable": None}
        for head in spec.heads
    }
    return parts | ({"pooler": True} if spec.pooler else {})


def _described(settings: RunSettings) -> tuple[TextSpec, TokenizerPair]:
    """The model to begin with, after checking it against the settings."""
    assert settings.init is not None
    described: Description = describe_any(Path(settings.init))
    spec, tokenizers = described.spec, described.tokenizers
    if tokenizers is None or not isinstance(spec, TranslatorSpec | CausalLMSpec | EncoderSpec):
        raise ModelError(
            f"The model to begin with is of the kind {spec.kind} and has no tokenizer",
            where=settings.init,
            remedy="Begin with a model of text",
        )
    found = contradictions(settings.model, spec)
    if found:
        raise ConfigError(
            f"The model to begin with is another one: {'; '.join(found)}",
            where=settings.init,
            remedy="Leave these dials out: the model brings its own",
        )
    _check_length(spec, settings)
    return spec, tokenizers


def _check_length(spec: TextSpec, settings: RunSettings) -> None:
    learned = spec.embedding.positions.max_length
    if spec.embedding.positions.kind != "learned" or learned is None:
        return
    # Of a pair, the token that ends or begins a text comes on top.
    limit = learned - 1 if isinstance(spec, TranslatorSpec) else learned
    if settings.data.max_length > limit:
        raise ConfigError(
            f"data.max_length = {settings.data.max_length} is more than the {limit} tokens that "
            f"{settings.init} has learned positions for",
            where="data.max_length",
            remedy=f"Set it to {limit} or less",
        )


def _adapted(before: TextSpec, fresh: TextSpec, settings: RunSettings) -> TextSpec:
    """The spec of the model to begin with, for this task."""
    shape = settings.model
    if isinstance(before, TranslatorSpec):
        embedding, encoder = with_dropout(before.embedding, before.encoder, shape)
        _, decoder = with_dropout(before.embedding, before.decoder, shape)
        update: dict[str, Any] = {"embedding": embedding, "encoder": encoder, "decoder": decoder}
        return before.model_copy(update=update)
    # Without learned positions a model may be trained on longer texts than it was made for.
    length = before.max_length
    room = None if length is None else max(length, settings.data.max_length)
    if isinstance(before, CausalLMSpec):
        embedding, decoder = with_dropout(before.embedding, before.decoder, shape)
        block = decoder.block
        mask = block.self_attention.mask
        if not heeds_segments(mask):
            parts = mask.parts if isinstance(mask, AllOfSpec) else (mask,)
            own_text = AllOfSpec(parts=(*parts, SegmentSpec()))
            attention = block.self_attention.model_copy(update={"mask": own_text})
            block = block.model_copy(update={"self_attention": attention})
        decoder = decoder.model_copy(update={"block": block})
        update = {"embedding": embedding, "decoder": decoder, "max_length": room}
        return before.model_copy(update=update)
    assert isinstance(fresh, EncoderSpec)
    embedding, encoder = with_dropout(before.embedding, before.encoder, shape)
    heads = tuple(_head(head, before, settings) for head in fresh.heads)
    update = {
        "embedding": embedding,
        "encoder": encoder,
        "heads": heads,
        "pooler": any(map(takes_pooled, heads)),
        "max_length": room,
    }
    return before.model_copy(update=update)


def _head(wanted: HeadSpec, before: EncoderSpec, settings: RunSettings) -> HeadSpec:
    """A head of the model to begin with, or one like those it had."""
    if isinstance(wanted, SpanHeadSpec):
        return wanted  # there is one kind; whether it may find no answer is the data's matter
    shape = settings.model
    given = "dropout" in shape.model_fields_set
    dropout = {"dropout": shape.dropout if given else before.encoder.block.dropout}
    for head in before.heads:
        same_labels = getattr(head, "labels", ()) == getattr(wanted, "labels", ())
        if head.kind == wanted.kind and same_labels:
            droppable = given and "dropout" in type(head).model_fields
            return head.model_copy(update=dropout) if droppable else head
    if isinstance(wanted, SequenceHeadSpec) and before.pooler:
        wanted = wanted.model_copy(update={"source": "pooled"})
    return wanted.model_copy(update=dropout) if "dropout" in type(wanted).model_fields else wanted


def _extension(settings: RunSettings) -> list[str]:
    """The tokens that were asked for, each once."""
    spec = settings.tokenizer
    tokens = list(spec.extend)
    if spec.extend_file is not None:
        file = Path(spec.extend_file)
        try:
            lines = file.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"The tokens cannot be read: {error}",
                where=str(file),
                remedy="Give a file of text in UTF-8, a token a line",
            ) from None
        tokens += [line for line in lines if line]
        for number, line in enumerate(lines, start=1):
            if line and not can_be_added(line):
                raise DataError(
                    "White space begins or ends the token",
                    where=f"{file}:{number}",
                    remedy="Take it away",
                )
    return list(dict.fromkeys(tokens))


def _refuse_without_model(settings: RunSettings) -> None:
    for name, given in (
        ("lora.rank", settings.lora.rank > 0),
        ("tokenizer.extend", bool(settings.tokenizer.extend)),
        ("tokenizer.extend_file", settings.tokenizer.extend_file is not None),
    ):
        if given:
            raise ConfigError(
                f"{name} needs a model to begin with", where=name, remedy="Name it with --init"
            )

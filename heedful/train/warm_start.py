"""The model and tokenizers that training starts from: new ones, or those of a trained model.

A trained model may be one of ours or a Hugging Face directory; its architecture, weights and
tokenizer are taken whole. A task may predict something else than the model did, and the vocabulary
may grow; new parts start from first weights of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from heedful.errors import ConfigError, ModelError
from heedful.interop.hugging_face import Description, describe_any, read_any_weights
from heedful.models.build import build_model, canonical_weights, load_weights
from heedful.models.new_tokens import extended_weights, new_tokens, with_room
from heedful.models.preset_files import read_preset_spec
from heedful.models.spec_overrides import contradictions, separating_texts, with_overrides
from heedful.nn.spec import EmbeddingSpec
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.train.lora import adapt
from heedful.train.splitting import derive_seed

if TYPE_CHECKING:
    from heedful.events import Events
    from heedful.models.build import AnyModel
    from heedful.train.run_settings import RunSettings


def initial_model(
    spec: Any, settings: RunSettings, tokenizers: TokenizerPair | None, events: Events
) -> AnyModel:
    """A run's model with its first weights, a function of the seed and of the initial model.

    Args:
        spec: of a new model; of a text model that training starts from only the heads are changed
            to its. A model of images has the initial model's shape already.
        settings: of the run.
        tokenizers: of the run; None for images.
        events: receive the parts of the initial model that are left out, and the new ones.

    Raises:
        ModelError: when the initial model is missing, damaged, or of another kind.
        ConfigError: when a setting contradicts it.
    """
    torch.manual_seed(derive_seed(settings.seed))
    if settings.init is None:
        if settings.published_preset and tokenizers is not None:
            spec = _preset_spec(spec, settings, tokenizers)
        return build_model(spec)
    if tokenizers is None:
        before, tokens = describe_any(Path(settings.init)).spec, {}
    else:
        before, tokenizers_before = initial_text_model(settings)
        if before.kind != spec.kind:
            raise ModelError(
                f"The model to begin with is of the kind {before.kind}; the task {settings.task} "
                f"trains one of the kind {spec.kind}",
                where=settings.init,
                remedy="Begin with another model, or choose another task",
            )
        spec = with_room(_adapted(before, spec, settings), tokenizers)
        tokens = new_tokens(tokenizers_before, tokenizers)
    change = _Change.between(before, spec)
    model = build_model(spec)
    weights: Mapping[str, torch.Tensor] = {
        name: tensor
        for name, tensor in read_any_weights(Path(settings.init)).items()
        if not _is_within(name, change.left_out)
    }
    own = canonical_weights(model)
    if tokens:
        weights = extended_weights(weights, own, tokens)
    new = {name: tensor for name, tensor in own.items() if _is_within(name, change.new)}
    load_weights(model, {**weights, **new}, where=settings.init)
    change.note(settings.init, events)
    if settings.lora.rank:
        adapt(model, settings.lora, new_parts=change.new, new_tokens=tokens, seed=settings.seed)
    return model


def _preset_spec(spec: Any, settings: RunSettings, tokenizers: TokenizerPair) -> Any:
    """The shape of a published model, with the vocabularies of the run and the task's heads."""
    assert settings.preset is not None
    preset = read_preset_spec(settings.preset)
    where = f"preset {settings.preset}"
    _refuse_differences(contradictions(settings.model, preset), where)
    _check_length(preset, settings, where)
    adapted = _adapted(preset, spec, settings)
    sizes = {"source": tokenizers.source.size, "target": tokenizers.target.size}
    if adapted.sharing in ("all", "inputs") and not tokenizers.joint:
        raise ConfigError(
            f"The {where} has one vocabulary for source and target",
            where="tokenizer.joint",
            remedy="Set it to true",
        )
    return type(spec).parse(adapted.with_vocabularies(**sizes).plain(), where=where)


def initial_labels(settings: RunSettings, kind: str, labels: Sequence[str]) -> list[str]:
    """The labels of a head: those of the initial model, where they hold all of the data's.

    Args:
        settings: of the run.
        kind: of the head.
        labels: of the training data.
    """
    if settings.init is not None:
        spec, _ = initial_text_model(settings)
        for head in getattr(spec, "heads", ()):
            known = getattr(head, "labels", ())
            if head.kind == kind and set(labels) <= set(known):
                return list(known)
    return list(labels)


def initial_origin(settings: RunSettings) -> Mapping[str, Any]:
    """The origin of an imported initial model, which an export needs; empty for others."""
    return {} if settings.init is None else describe_any(Path(settings.init)).origin


@dataclass(frozen=True)
class _Change:
    """The parts of the initial model that a task's model lacks, and those it adds.

    Args:
        left_out: addresses of parts.
        new: addresses of parts.
    """

    left_out: tuple[str, ...]
    new: tuple[str, ...]

    @classmethod
    def between(cls, before: Any, now: Any) -> _Change:
        old, new = _parts(before), _parts(now)
        return cls(
            tuple(sorted(part for part in old if new.get(part) != old[part])),
            tuple(sorted(part for part in new if new[part] != old.get(part))),
        )

    def note(self, where: str, events: Events) -> None:
        for part in self.left_out:
            events.note(f"{part} of {where} is left out")
        for part in self.new:
            events.note(f"{part} is not in {where} and begins anew")


def _is_within(name: str, parts: Sequence[str]) -> bool:
    return any(name.startswith(f"{part}.") for part in parts)


def _parts(spec: Any) -> dict[str, Any]:
    """The addresses of parts that another model may lack, and a description of each."""
    parts: dict[str, Any] = {
        f"heads.{head.kind}": head.plain() | {"dropout": None, "unanswerable": None}
        for head in getattr(spec, "heads", ())
    }
    if spec.reads == "images" and spec.class_names:
        parts["classifier"] = spec.class_names
    return parts | ({"pooler": True} if getattr(spec, "pooler", False) else {})


def initial_text_model(settings: RunSettings) -> tuple[Any, TokenizerPair]:
    """Spec and tokenizers of the initial model, checked against the settings.

    Raises:
        ModelError: when it is missing, damaged, or of images.
        ConfigError: when a setting contradicts it.
    """
    assert settings.init is not None
    described: Description = describe_any(Path(settings.init))
    spec, tokenizers = described.spec, described.tokenizers
    if tokenizers is None or spec.reads == "images":
        raise ModelError(
            f"The model to begin with is of the kind {spec.kind} and has no tokenizer",
            where=settings.init,
            remedy="Begin with a model of text",
        )
    _refuse_differences(contradictions(settings.model, spec), settings.init)
    _check_length(spec, settings, settings.init)
    return spec, tokenizers


def initial_vision_spec(settings: RunSettings) -> Any:
    """The spec of the initial model of images, with the settings' dropout; None without one.

    Raises:
        ModelError: when it is damaged or of another kind.
        ConfigError: when a setting contradicts it.
    """
    spec: Any
    if settings.init is not None:
        where = settings.init
        spec = describe_any(Path(where)).spec
    elif settings.published_preset:
        assert settings.preset is not None
        where = f"preset {settings.preset}"
        spec = read_preset_spec(settings.preset)
    else:
        return None
    if spec.reads != "images":
        raise ModelError(
            f"The model to begin with is of the kind {spec.kind} and reads no images",
            where=where,
            remedy="Begin with a vision Transformer",
        )
    differences = contradictions(settings.model, spec)
    own: dict[str, int | str] = {"size": spec.image_size, "channels": spec.channels}
    own |= {"patch_size": spec.patch_size, "pooling": spec.pooling}
    for name, value in own.items():
        setting = getattr(settings.images, name)
        if setting not in (None, value):
            differences.append(f"images.{name} is {setting}, and the model's {value}")
    _refuse_differences(differences, where)
    _, encoder = with_overrides(EmbeddingSpec(), spec.encoder, settings.model)
    is_set = "dropout" in settings.model.model_fields_set
    dropout = settings.model.dropout if is_set else spec.dropout
    return spec.model_copy(update={"encoder": encoder, "dropout": dropout})


def _refuse_differences(differences: Sequence[str], where: str) -> None:
    if differences:
        raise ConfigError(
            f"The model to begin with is another one: {'; '.join(differences)}",
            where=where,
            remedy="Leave these options out: the model brings its own",
        )


def _check_length(spec: Any, settings: RunSettings, where: str) -> None:
    learned = spec.embedding.positions.max_length
    if spec.embedding.positions.kind != "learned" or learned is None:
        return
    # The token that begins or ends each text of a pair comes on top.
    limit = learned - 1 if spec.reads == "pairs" else learned
    if settings.data.max_length > limit:
        raise ConfigError(
            f"data.max_length = {settings.data.max_length} is more than the {limit} tokens that "
            f"{where} has learned positions for",
            where="data.max_length",
            remedy=f"Set it to {limit} or less",
        )


def _adapted(before: Any, fresh: Any, settings: RunSettings) -> Any:
    """The spec of the initial model, for this task."""
    shape = settings.model
    changes: dict[str, Any] = {}
    length = before.max_length
    for name, stack in before.stacks().items():
        changed = with_overrides(before.embedding, stack, shape, trained_length=length)
        changes["embedding"], changes[name] = changed
    if before.reads == "pairs":
        return before.model_copy(update=changes)
    if length is not None:
        # Without learned positions a model may be trained on longer texts than it was made for.
        changes["max_length"] = max(length, settings.data.max_length)
    if before.generates:
        changes["decoder"] = changes["decoder"].with_attentions(separating_texts)
    else:
        changes["heads"] = tuple(_head(head, before, settings) for head in fresh.heads)
        changes["pooler"] = any(head.reads_pooled for head in changes["heads"])
    return before.model_copy(update=changes)


def _head(fresh: Any, before: Any, settings: RunSettings) -> Any:
    """The head of the initial model that equals a new one; else the new one, with its options."""
    if fresh.kind == "span":
        return fresh  # there is one kind; unanswerable questions are a matter of the data
    shape = settings.model
    is_set = "dropout" in shape.model_fields_set
    dropout = {"dropout": shape.dropout if is_set else before.encoder.pattern[0].dropout}
    for head in before.heads:
        same_labels = getattr(head, "labels", ()) == getattr(fresh, "labels", ())
        if head.kind == fresh.kind and same_labels:
            can_drop = is_set and "dropout" in type(head).model_fields
            return head.model_copy(update=dropout) if can_drop else head
    if fresh.kind == "sequence" and before.pooler:
        fresh = fresh.model_copy(update={"source": "pooled"})
    return fresh.model_copy(update=dropout) if "dropout" in type(fresh).model_fields else fresh


def initial_tokenizers(settings: RunSettings, events: Events) -> TokenizerPair | None:
    """The tokenizers of the initial model, with the tokens that the settings add.

    Args:
        settings: of the run.
        events: receive the number of new tokens.

    Returns:
        None where training starts from a new model.

    Raises:
        ModelError: when the initial model is missing or damaged.
        ConfigError: when a setting contradicts it, or needs one.
    """
    if settings.init is None:
        _refuse_without_model(settings)
        return None
    _, before = initial_text_model(settings)
    if settings.protected_kinds:
        kinds = None if before.protection is None else before.protection.kinds
        if kinds != settings.protected_kinds:
            raise ConfigError(
                f"The model to begin with {_protects(kinds)}; only a new model can learn others",
                where="protect",
                remedy="Leave it out, or train without --init",
            )
    tokens = settings.tokenizer.added_tokens()
    if not tokens:
        return before
    source = before.source.extended(tokens)
    target = source if before.joint else before.target.extended(tokens)
    now = replace(before, source=source, target=target)
    sides = 1 if before.joint else 2
    # A joint vocabulary is counted on both sides.
    added = sum(len(new.pieces) for new in new_tokens(before, now).values()) * sides // 2
    known = sides * len(tokens) - added
    events.note(
        f"{added:,} tokens are added to the vocabulary"
        + (f"; {known:,} are pieces of it already" if known else "")
    )
    return now


def _protects(kinds: Sequence[str] | None) -> str:
    return f"protects {', '.join(kinds)}" if kinds else "protects no parts of texts"


def _refuse_without_model(settings: RunSettings) -> None:
    for name, is_set in (
        ("lora.rank", settings.lora.rank > 0),
        ("tokenizer.extend", bool(settings.tokenizer.extend)),
        ("tokenizer.extend_file", settings.tokenizer.extend_file is not None),
    ):
        if is_set:
            raise ConfigError(
                f"{name} needs a model to begin with", where=name, remedy="Name it with --init"
            )

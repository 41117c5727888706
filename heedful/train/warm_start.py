"""The initial model and tokenizers of a run: new ones, or those of a trained model.

A trained model may be one of ours or a Hugging Face directory; its architecture, weights and
tokenizer are used unchanged. The task may need other heads, and the vocabulary may grow; these new
parts are newly initialised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from heedful.errors import ConfigError, ModelError
from heedful.events import Events
from heedful.interop.hugging_face import Description, describe_any, read_any_weights
from heedful.models.build import build_model, canonical_weights, load_weights
from heedful.models.decoder_as_encoder import as_encoder, encoder_weights, framing
from heedful.models.new_tokens import extended_weights, new_tokens, with_room
from heedful.models.preset_files import TASKS_OF_KIND, read_preset_spec
from heedful.models.spec_overrides import (
    contradictions,
    separating_texts,
    stacks_with_overrides,
    with_overrides,
)
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.train.lora import adapt
from heedful.train.run_settings import RunSettings
from heedful.train.splitting import derive_seed

_ENCODING = ("classify", "tag", "answer", "reward")
"""Tasks for which a causal language model is read as an encoder."""


def initial_model(
    spec: Any, settings: RunSettings, tokenizers: TokenizerPair | None, events: Events
) -> nn.Module:
    """Build a run's model with its initial weights, a function of the seed and the initial model.

    Args:
        spec: specification of a new model. With an initial model of text only its heads are used;
            with one of images it is derived from that model already.
        settings: settings of the training run.
        tokenizers: tokenizers of the run; None for images.
        events: receivers of notes on dropped and new parts.

    Raises:
        ModelError: when the initial model is missing, damaged, or of another kind.
        ConfigError: when a setting contradicts it.
    """
    # Seeded before the model is built, so its initial weights are a function of the seed alone.
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
        spec = with_room(_adapt_spec(before, spec, settings), tokenizers)
        tokens = new_tokens(tokenizers_before, tokenizers)
    # Parts whose specification differs are not loaded, even where their shapes would fit: a
    # classifier of other labels with equal size would start with the wrong meaning.
    old, now = _parts(before), _parts(spec)
    left_out = sorted(part for part in old if now.get(part) != old[part])
    new_parts = sorted(part for part in now if now[part] != old.get(part))
    model = build_model(spec)
    weights: Mapping[str, torch.Tensor] = read_any_weights(Path(settings.init))
    if spec.kind == "encoder":  # whose weights may be those of a decoder
        weights = encoder_weights(weights)
    weights = {n: tensor for n, tensor in weights.items() if not _is_within(n, left_out)}
    own = canonical_weights(model)
    if tokens:
        weights = extended_weights(weights, own, tokens)
    # Freshly drawn tensors of new parts, so that strict loading finds every name.
    new = {name: tensor for name, tensor in own.items() if _is_within(name, new_parts)}
    load_weights(model, {**weights, **new}, where=settings.init)
    for part in left_out:
        events.note(f"{part} of {settings.init} is left out")
    for part in new_parts:
        events.note(f"{part} is not in {settings.init} and begins anew")
    if settings.lora.rank:
        adapt(model, settings.lora, new_parts=new_parts, new_tokens=tokens, seed=settings.seed)
    return model


def _preset_spec(spec: Any, settings: RunSettings, tokenizers: TokenizerPair) -> Any:
    """Return the spec of a published model with the run's vocabularies and the task's heads."""
    assert settings.preset is not None
    preset = read_preset_spec(settings.preset)
    where = f"preset {settings.preset}"
    _refuse_differences(contradictions(settings.model, preset), where)
    _check_length(preset, settings, where)
    adapted = _adapt_spec(preset, spec, settings)
    sizes = {"source": tokenizers.source.size, "target": tokenizers.target.size}
    if adapted.sharing in ("all", "inputs") and not tokenizers.joint:
        raise ConfigError(
            f"The {where} has one vocabulary for source and target",
            where="tokenizer.joint",
            remedy="Set it to true",
        )
    # Parsed anew: changed sizes go through the checks of a spec from a file.
    return type(spec).parse(adapted.with_vocabularies(**sizes).plain(), where=where)


def initial_labels(settings: RunSettings, kind: str, labels: Sequence[str]) -> list[str]:
    """Return the labels of a head: the initial model's if they include all of the data's.

    Args:
        settings: settings of the training run.
        kind: kind of head.
        labels: labels of the training data.
    """
    if settings.init is not None:
        spec, _ = initial_text_model(settings)
        for head in getattr(spec, "heads", ()):
            # In the model's order: row i of its classifier belongs to its label i.
            if head.kind == kind and set(labels) <= set(head.class_names):
                return list(head.class_names)
    return list(labels)


def exact_text(settings: RunSettings) -> int | None:
    """Return the only number of tokens that the encoder of a run can read; None for any.

    Args:
        settings: settings of the training run.
    """
    if settings.init is not None:
        spec, _ = initial_text_model(settings)
        exact: int | None = next(iter(spec.stacks().values())).exact_text
        return exact
    evoformer = settings.model.evoformer
    return None if evoformer is None else evoformer.side**2


def initial_origin(settings: RunSettings) -> Mapping[str, Any]:
    """Return the origin of an imported initial model, which exports need; empty for others."""
    if settings.init is None:
        return {}
    described = describe_any(Path(settings.init))
    # A decoder with heads is no model of the architecture that was imported.
    return {} if _becomes_encoder(described.spec, settings) else described.origin


def _becomes_encoder(spec: Any, settings: RunSettings) -> bool:
    """Return whether a causal language model is to label, to answer, or to reward answers."""
    return spec.kind == "causal_lm" and settings.base_task in _ENCODING


def _is_within(name: str, parts: Sequence[str]) -> bool:
    return any(name.startswith(f"{part}.") for part in parts)


def _parts(spec: Any) -> dict[str, Any]:
    """Return a description of each optional part of a model, by address."""
    parts: dict[str, Any] = {
        # Dropout has no weights, and whether questions may be unanswerable changes none.
        f"heads.{head.kind}": head.plain() | {"dropout": None, "unanswerable": None}
        for head in getattr(spec, "heads", ())
    }
    if spec.reads == "images" and spec.class_names:
        parts["classifier"] = spec.class_names
        if getattr(spec, "distillation", None) == "classifier":
            parts["distillation_classifier"] = spec.class_names
    return parts | ({"pooler": True} if getattr(spec, "pooler", False) else {})


def initial_text_model(settings: RunSettings) -> tuple[Any, TokenizerPair]:
    """Return spec and tokenizers of the initial model, checked against the settings.

    The spec of a causal language model is that of an encoder for the tasks of encoders.

    Raises:
        ModelError: when the initial model is missing, damaged, or a model of images.
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
    # `framing` leaves a tokenizer of fields as it is; such a model is refused as of another kind.
    if _becomes_encoder(spec, settings) and not hasattr(tokenizers.source, "encode_prompt"):
        spec = as_encoder(spec)
    _refuse_differences(contradictions(settings.model, spec), settings.init)
    _check_length(spec, settings, settings.init)
    return spec, tokenizers


def initial_image_spec(settings: RunSettings) -> Any:
    """Return the spec of the initial model of images with the settings' dropout; None without one.

    Raises:
        ModelError: when the initial model is damaged or of another kind.
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
    if settings.base_task not in TASKS_OF_KIND.get(spec.kind, ()):
        raise ModelError(
            f"The model to begin with is of the kind {spec.kind}; the task {settings.task} trains "
            f"one of the kind {settings.model_kind}",
            where=where,
            remedy="Begin with another model, or choose another task",
        )
    differences = contradictions(settings.model, spec)
    own = spec.image_options
    for name, setting in settings.images:
        # A setting that repeats the model's value is no contradiction.
        if setting not in (None, value := own.get(name)):
            differences.append(f"images.{name} is {setting}, and the model's {value}")
    _refuse_differences(differences, where)
    if spec.kind == "resnet":
        return spec  # it has no dropout
    stacks = stacks_with_overrides(spec, settings.model)
    is_set = "dropout" in settings.model.model_fields_set
    dropout = settings.model.dropout if is_set else spec.dropout
    return spec.model_copy(update={**stacks, "dropout": dropout})


def _refuse_differences(differences: Sequence[str], where: str) -> None:
    if differences:
        raise ConfigError(
            f"The model to begin with is another one: {'; '.join(differences)}",
            where=where,
            remedy="Leave these options out: the model brings its own",
        )


def _check_length(spec: Any, settings: RunSettings, where: str) -> None:
    learned = spec.num_positions
    if learned is None:
        return
    # `data.max_length` does not count the begin or end token of each side of a pair.
    limit = learned - 1 if spec.reads == "pairs" else learned
    if settings.data.max_length > limit:
        raise ConfigError(
            f"data.max_length = {settings.data.max_length} is more than the {limit} tokens that "
            f"{where} has learned positions for",
            where="data.max_length",
            remedy=f"Set it to {limit} or less",
        )


def _adapt_spec(before: Any, fresh: Any, settings: RunSettings) -> Any:
    """Adapt the initial model's spec to the task: dropout, lengths and heads."""
    shape = settings.model
    changes: dict[str, Any] = {}
    length = before.max_length
    for name, stack in before.stacks().items():
        changed = with_overrides(before.embedding, stack, shape, trained_length=length)
        changes["embedding"], changes[name] = changed
    if before.reads == "pairs":
        return before.model_copy(update=changes)
    if length is not None:
        # Learned positions were checked before; other positions allow texts longer than in the
        # initial model.
        changes["max_length"] = max(length, settings.data.max_length)
    if before.generates:
        # Windows hold several texts, which must not attend to each other.
        changes["decoder"] = changes["decoder"].with_attentions(separating_texts)
    else:
        changes["heads"] = tuple(_head(head, before, settings) for head in fresh.heads)
        changes["pooler"] = any(head.reads_pooled for head in changes["heads"])
    return before.model_copy(update=changes)


def _head(fresh: Any, before: Any, settings: RunSettings) -> Any:
    """Return the initial model's equal head, else the new head with the run's dropout."""
    if fresh.kind == "span":
        return fresh  # all span heads have the same weights; `unanswerable` follows the data
    shape = settings.model
    is_set = "dropout" in shape.model_fields_set
    dropout = {"dropout": shape.dropout if is_set else before.encoder.pattern[0].dropout}
    for head in before.heads:
        if head.kind == fresh.kind and head.class_names == fresh.class_names:
            can_drop = is_set and "dropout" in type(head).model_fields
            return head.model_copy(update=dropout) if can_drop else head
    fresh = fresh.after(before.encoder)
    # BERT's pooler was trained for exactly this input of a classifier.
    if fresh.kind == "sequence" and before.pooler:
        fresh = fresh.model_copy(update={"source": "pooled"})
    return fresh.model_copy(update=dropout) if "dropout" in type(fresh).model_fields else fresh


def initial_tokenizers(settings: RunSettings, events: Events) -> TokenizerPair | None:
    """Return the tokenizers of the initial model with the tokens that the settings add.

    Args:
        settings: settings of the training run.
        events: receivers of a note on the number of new tokens.

    Returns:
        None where training starts from a new model.

    Raises:
        ModelError: when the initial model is missing or damaged.
        ConfigError: when a setting contradicts the initial model, or needs one.
    """
    if settings.init is None:
        _refuse_without_model(settings)
        return None
    _, before = initial_text_model(settings)
    # It may be of other languages now, and validation measures what the model itself writes.
    before = replace(before, writing=None)
    if settings.model_kind == "encoder" and before.source.mask is None:
        before = framing(before)  # of a decoder
    if settings.protected_kinds:
        kinds = None if before.protection is None else before.protection.kinds
        # Placeholders of other kinds of parts have no trained embeddings.
        if kinds != settings.protected_kinds:
            raise ConfigError(
                f"The model to begin with {_protects(kinds)}; only a new model can learn others",
                where="protect",
                remedy="Leave it out, or train without --init",
            )
    tokens = settings.tokenizer.added_tokens()
    learns_terms = settings.soft_terms is not None and not before.soft_terms
    if not tokens:
        return before.with_soft_terms() if learns_terms else before
    # A joint vocabulary stays one object, so the embedding tables stay shared.
    source = before.source.extended(tokens)
    target = source if before.joint else before.target.extended(tokens)
    now = replace(before, source=source, target=target)
    sides = 1 if before.joint else 2
    # `new_tokens` lists a joint vocabulary on both sides, hence the division by 2.
    added = sum(len(new.pieces) for new in new_tokens(before, now).values()) * sides // 2
    known = sides * len(tokens) - added
    events.note(
        f"{added:,} tokens are added to the vocabulary"
        + (f"; {known:,} are pieces of it already" if known else "")
    )
    return now.with_soft_terms() if learns_terms else now


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

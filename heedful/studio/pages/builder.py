"""Page "Builder": a model put together from dials, what it costs, and the file that trains it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from heedful.config import Config, dump_toml
from heedful.errors import ConfigError
from heedful.models.cost import (
    FLOAT32,
    count_parameters,
    decoding_cost,
    decoding_memory,
    parameter_table,
    training_cost,
    training_memory,
)
from heedful.models.shape import TranslatorShape
from heedful.models.sizes import has_spec, preset_names, published_parameters, read_preset
from heedful.studio.page import Call, Page
from heedful.text.spec import TokenizerSpec

if TYPE_CHECKING:
    from heedful.models.family import ModelSpec
    from heedful.models.spec import TranslatorSpec
    from heedful.studio.workspace import Workspace

LARGEST = {"width": 16_384, "encoder_layers": 256, "decoder_layers": 256, "feedforward": 131_072}
"""Past these a picture is no longer drawn; the largest published models stay below."""

Tokens = Annotated[int, Field(ge=1, le=100_000)]
Task = Literal["translation", "causal_lm", "masked_lm"]


class BuildRequest(Config):
    """What the model is for, its dials, and what to count for."""

    task: Task = "translation"
    model: TranslatorShape = TranslatorShape()
    vocabulary: Annotated[int, Field(ge=8, le=1_000_000)] = 37_000
    tokens: Tokens = 25
    beam: Annotated[int, Field(ge=1, le=64)] = 4
    batch_tokens: Annotated[int, Field(ge=1, le=10_000_000)] = 4096


class PresetRequest(Config):
    """A size of translators by name."""

    name: str


class NoSettings(Config):
    """Nothing to ask for."""


def build(asked: BuildRequest, workspace: Workspace) -> dict[str, Any]:
    """Parameters by component, operations, memory, and the settings file."""
    for dial, most in LARGEST.items():
        if getattr(asked.model, dial) > most:
            raise ConfigError(f"{dial} is at most {most:,} here", where=f"model.{dial}")
    try:
        found = _translator(asked) if asked.task == "translation" else _other(asked)
    except ValueError as error:  # a rule of the spec, which pydantic wraps
        raise _rule(error) from None
    return {**found, "toml": settings_file(asked)}


def settings_file(asked: BuildRequest) -> str:
    """The TOML that `heedful train --config` takes; data are given there, or added."""
    return dump_toml(
        {
            "task": asked.task,
            "model": asked.model.plain(),
            "tokenizer": {"vocabulary_size": asked.vocabulary},
            "data": {"batch_tokens": asked.batch_tokens, "max_length": asked.model.max_length},
        }
    )


def preset(asked: PresetRequest, workspace: Workspace) -> dict[str, Any]:
    """The dials of a size of translators."""
    settings = read_preset(asked.name)
    where = f"preset {asked.name}"
    tokenizer = TokenizerSpec.parse(settings.get("tokenizer", {}), where=where)
    return {
        "model": TranslatorShape.parse(settings["model"], where=where).plain(),
        "vocabulary": tokenizer.vocabulary_size,
    }


def presets(asked: NoSettings, workspace: Workspace) -> dict[str, Any]:
    """Published models with their published numbers of parameters, and our sizes with theirs."""
    found = []
    for name in preset_names():
        size = not has_spec(name)
        if size:
            dials = preset(PresetRequest(name=name), workspace)
            shape = TranslatorShape.parse(dials["model"])
            parameters = count_parameters(shape.expand(dials["vocabulary"], dials["vocabulary"]))
        else:
            published = published_parameters(name)
            if published is None:
                continue
            parameters = published
        found.append({"name": name, "parameters": parameters, "dials": size})
    return {"presets": sorted(found, key=lambda each: each["parameters"])}


def _translator(asked: BuildRequest) -> dict[str, Any]:
    spec = asked.model.expand(asked.vocabulary, asked.vocabulary)
    training = training_cost(spec, asked.tokens, asked.tokens)
    decoding = decoding_cost(spec, asked.tokens, asked.tokens, asked.beam)
    return {
        "total": count_parameters(spec),
        "rows": [{**asdict(row), "total": row.total} for row in parameter_table(spec)],
        "operations": {
            "learning from a pair": training.total.total,
            "reading the source": decoding.encoding.total,
            "first word, all hypotheses": decoding.first_step.total,
            "last word, all hypotheses": decoding.last_step.total,
            "translating a sentence": decoding.total.total,
        },
        "memory": _memory(spec, asked),
    }


def _memory(spec: TranslatorSpec, asked: BuildRequest) -> dict[str, dict[str, int]]:
    training = training_memory(spec, asked.batch_tokens, asked.batch_tokens)
    decoding = decoding_memory(spec, asked.tokens, asked.tokens, beam=asked.beam)
    return {
        "training": {
            "weights": training.weights,
            "gradients": training.gradients,
            "Adam's moments": training.moments,
            "activations (estimate)": training.activations,
            "loss": training.loss,
        },
        "translating": {
            "weights": decoding.weights,
            "keys and values of the source": decoding.cross_cache,
            "keys and values of the beam": decoding.self_cache,
        },
    }


def _other(asked: BuildRequest) -> dict[str, Any]:
    """A language model: its parameters, and what training holds whatever the batch."""
    from heedful.models.build import parameter_counts

    counts = parameter_counts(_family_spec(asked))
    total = sum(counts.values())
    weights = total * FLOAT32
    return {
        "total": total,
        "rows": [
            {
                "part": name.partition(".")[0],
                "component": name.partition(".")[2] or name,
                "each": count,
                "count": 1,
                "total": count,
                "note": "",
            }
            for name, count in counts.items()
        ],
        "operations": {},
        "memory": {
            "training, before any batch": {
                "weights": weights,
                "gradients": weights,
                "Adam's moments": 2 * weights,
            }
        },
    }


def _family_spec(asked: BuildRequest) -> ModelSpec:
    from heedful.models.family import MaskedLMHeadSpec
    from heedful.models.shapes import causal_lm_spec, encoder_spec

    shape, length = asked.model, asked.model.max_length
    if asked.task == "causal_lm":
        return causal_lm_spec(shape, asked.vocabulary, length)
    return encoder_spec(shape, asked.vocabulary, length, (MaskedLMHeadSpec(),))


def _rule(error: ValueError) -> ConfigError:
    import pydantic

    if isinstance(error, pydantic.ValidationError):
        reasons = [item["msg"].removeprefix("Value error, ") for item in error.errors()]
        return ConfigError("; ".join(reasons), where="model")
    return ConfigError(str(error), where="model")


PAGE = Page(
    name="builder",
    title="Builder",
    summary="A model put together from dials, and what it costs.",
    about=(
        "Turn the dials and see where the parameters sit, how much arithmetic a sentence takes and "
        "whether it fits into memory, beside models that were published. The file at the end is "
        "what `heedful train RUN --config` takes; only your data is still to be named."
    ),
    calls={
        "build": Call(BuildRequest, build),
        "preset": Call(PresetRequest, preset),
        "presets": Call(NoSettings, presets),
    },
)

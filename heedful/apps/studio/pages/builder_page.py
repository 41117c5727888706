"""Page "Builder": a model composed of parts, its costs, and the file to train it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from heedful.apps.studio.mixer_costs import mixer_costs, mixer_names
from heedful.apps.studio.page import NoSettings, call
from heedful.apps.studio.workspace import Workspace
from heedful.config import Config, dump_toml
from heedful.engines.cost_memory import training_memory
from heedful.models.cost import (
    count_parameters,
    decoding_cost,
    decoding_memory,
    encoding_work,
    parameter_table,
    parameters_by_module,
    state_bytes,
    step_work,
    text_work,
    training_cost,
)
from heedful.models.encoder_spec import MaskedLMHeadSpec
from heedful.models.preset_files import has_spec, preset_names, published_parameters, read_preset
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec, encoder_spec, translator_spec
from heedful.nn.work import FLOAT32
from heedful.text.tokenizer_spec import TokenizerSpec

LARGEST = {"width": 16_384, "encoder_layers": 256, "decoder_layers": 256, "feedforward": 131_072}
"""Upper bounds of the settings, above those of the largest published models."""

Tokens = Annotated[int, Field(ge=1, le=100_000)]
Task = Literal["translation", "causal_lm", "masked_lm"]


class BuildRequest(Config):
    """The task and shape of a model, with the lengths and batch sizes of its costs."""

    task: Task = "translation"
    model: TranslatorShape = TranslatorShape()
    vocabulary: Annotated[int, Field(ge=8, le=1_000_000)] = 37_000
    tokens: Tokens = 25
    beam: Annotated[int, Field(ge=1, le=64)] = 4
    batch_tokens: Annotated[int, Field(ge=1, le=10_000_000)] = 4096

    @model_validator(mode="after")
    def _is_of_a_known_size(self) -> Self:
        for name, most in LARGEST.items():
            if getattr(self.model, name) > most:
                raise ValueError(f"model.{name} is at most {most:,} here")
        return self


class PresetRequest(Config):
    """The name of a preset of translators."""

    name: str


@call(BuildRequest)
def build(request: BuildRequest, workspace: Workspace) -> dict[str, Any]:
    """Return parameters by component, operations, memory, and the settings file."""
    costs = _translator(request) if request.task == "translation" else _other(request)
    return {**costs, "toml": settings_file(request)}


def settings_file(request: BuildRequest) -> str:
    """Return the TOML for `heedful train --config`, to which the user adds data."""
    return dump_toml(
        {
            "task": request.task,
            "model": request.model.plain(),
            "tokenizer": {"vocabulary_size": request.vocabulary},
            "data": {"batch_tokens": request.batch_tokens, "max_length": request.model.max_length},
        }
    )


@call(PresetRequest)
def preset(request: PresetRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the settings of a preset of translators."""
    settings = read_preset(request.name)
    where = f"preset {request.name}"
    tokenizer = TokenizerSpec.parse(settings.get("tokenizer", {}), where=where)
    return {
        "model": TranslatorShape.parse(settings["model"], where=where).plain(),
        "vocabulary": tokenizer.vocabulary_size,
    }


@call()
def presets(request: NoSettings, workspace: Workspace) -> dict[str, Any]:
    """Return published models and our presets with their sizes, and the mixers to choose from."""
    presets: list[dict[str, Any]] = []
    for name in preset_names():
        size = not has_spec(name)
        if size:
            settings = preset(PresetRequest(name=name), workspace)
            shape, pieces = TranslatorShape.parse(settings["model"]), settings["vocabulary"]
            parameters = count_parameters(translator_spec(shape, pieces, pieces))
        else:
            published = published_parameters(name)
            if published is None:
                continue
            parameters = published
        presets.append({"name": name, "parameters": parameters, "dials": size})
    ordered = sorted(presets, key=lambda each: each["parameters"])
    return {"presets": ordered, "mixers": mixer_names()}


def _translator(request: BuildRequest) -> dict[str, Any]:
    spec = translator_spec(request.model, request.vocabulary, request.vocabulary)
    training = training_cost(spec, request.tokens, request.tokens)
    decoding = decoding_cost(spec, request.tokens, request.tokens, request.beam)
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
        "memory": _memory(spec, request),
        **mixer_costs(spec, request.model, request.tokens),
    }


def _memory(spec: Any, request: BuildRequest) -> dict[str, dict[str, int]]:
    training = training_memory(spec, request.batch_tokens, request.batch_tokens)
    decoding = decoding_memory(spec, request.tokens, request.tokens, beam=request.beam)
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
            "kept of the source": decoding.cross_cache,
            "kept of the beam": decoding.self_cache,
        },
    }


def _other(request: BuildRequest) -> dict[str, Any]:
    """Return the parameters of a language model, and its training memory without a batch."""
    spec = _family_spec(request)
    counts = parameters_by_module(spec)
    total = sum(counts.values())
    weights = total * FLOAT32
    memory = {
        "training, before any batch": {
            "weights": weights,
            "gradients": weights,
            "Adam's moments": 2 * weights,
        }
    }
    if request.task == "causal_lm":
        kept, _ = state_bytes(spec, request.tokens)
        memory["writing"] = {"weights": weights, "kept of the text": kept}
        operations = {
            "reading a text": text_work(spec, request.tokens).total,
            "writing one more token": step_work(spec, 0, request.tokens + 1).total,
        }
    else:
        operations = {"reading a text": encoding_work(spec, request.tokens).total}
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
        "operations": operations,
        "memory": memory,
        **mixer_costs(spec, request.model, request.tokens),
    }


def _family_spec(request: BuildRequest) -> Any:
    shape, length = request.model, request.model.max_length
    if request.task == "causal_lm":
        return causal_lm_spec(shape, request.vocabulary, length)
    return encoder_spec(shape, request.vocabulary, length, (MaskedLMHeadSpec(),))

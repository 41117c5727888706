"""Export of text and image encoders to ONNX, which many programs run without PyTorch."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heedful.apps.export.exported_parts import by_definition
from heedful.errors import ModelError
from heedful.interop.config_fields import write_labels
from heedful.interop.hf_files import CONFIG_FILE, write_json_file
from heedful.interop.hf_tokenizers import SETTINGS_FILE
from heedful.interop.processors import PREPROCESSOR_FILE, with_preprocessor
from heedful.interop.tokenizer_export import token_ids, write_tokenizers
from heedful.models.checkpoint import load_model, write_directory
from heedful.models.encoder import EncoderModel
from heedful.models.images.vision import VisionModel
from heedful.models.model_directory import find_model_directory, read_facts

MODEL_FILE = "model.onnx"

_PACKAGES = ("onnx", "onnxscript")
# Batch size and length of the traced example: no dimension of a model has these sizes, and
# `torch.export` would specialise on 0 and 1.
_EXAMPLE = (3, 7)


@dataclass(frozen=True)
class _Graph:
    """A model as a function of tensors alone.

    Args:
        module: module from `inputs`, in their order, to `outputs`.
        inputs: example tensors by name.
        axes: names of the dynamic axes of each input.
        outputs: names of the outputs.
    """

    module: nn.Module
    inputs: dict[str, Tensor]
    axes: dict[str, dict[int, str]]
    outputs: list[str]


def export_onnx(model: Path, out: Path) -> list[str]:
    """Write an encoder of ours as a directory with an ONNX file and the tokenizer.

    Args:
        model: model directory, or run directory (its best model is exported).
        out: directory to write, whose parent exists.

    Returns:
        The names of the outputs of the ONNX graph.

    Raises:
        ModelError: when the packages that write the file are not installed, or the model is no
            encoder, or has a mixture of experts.
        RunError: when the directory cannot be written.
    """
    directory = find_model_directory(model)
    facts = read_facts(directory)
    spec: Any = facts.spec
    if spec.kind != "encoder" and spec.kind != "vision":
        raise ModelError(
            f"A model of the kind {spec.kind!r} cannot be exported to ONNX",
            where=str(directory),
            remedy="Give an encoder of text or images; others go to --format hf or ctranslate2",
        )
    if spec.kind == "encoder" and spec.head("ctc"):
        raise ModelError(
            "Programs that run ONNX do not know how the labels of CTC become an answer",
            where=str(directory),
            remedy="Run the model with Heedful",
        )
    # The number of tokens that an expert gets depends on the data, which no traced graph can
    # express.
    if spec.encoder.block.feedforward.experts is not None:
        raise ModelError(
            "A graph cannot send tokens to experts (encoder.block.feedforward.experts)",
            where=str(directory),
            remedy="Train a model without a mixture of experts",
        )
    _check_packages()
    loaded, pair = load_model(directory)
    graph = _GRAPHS[spec.kind](loaded)
    program = _trace(graph)
    config = _config_of(spec)
    settings = with_preprocessor(facts.origin.get("files", {}), spec)
    if pair is not None:
        config |= token_ids(spec, pair.source)

    def write(fresh: Path) -> None:
        program.save(str(fresh / MODEL_FILE))
        write_json_file(fresh / CONFIG_FILE, config)
        if pair is not None:
            write_tokenizers(fresh, pair, settings.get(SETTINGS_FILE, {}))
        if settings.get(PREPROCESSOR_FILE):
            write_json_file(fresh / PREPROCESSOR_FILE, settings[PREPROCESSOR_FILE])

    write_directory(out, write)
    return graph.outputs


def _check_packages() -> None:
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelError(
            f"Packages that write such files are not installed: {', '.join(missing)}",
            where="--format onnx",
            remedy="Install them with: pip install 'heedful[onnx]'",
        )


def _config_of(spec: Any) -> dict[str, Any]:
    """Return the fields of config.json that programs read, such as the names of classes."""
    config: dict[str, Any] = {"hidden_size": spec.width}
    if spec.kind == "vision":
        config |= {"image_size": spec.image_size, "num_channels": spec.channels}
    else:
        config["vocab_size"] = spec.vocabulary
        if spec.max_length is not None:
            config["max_position_embeddings"] = spec.max_length
    return config | write_labels(spec.class_names) if spec.class_names else config


class _Text(nn.Module):
    """An encoder as a function from ids and a mask to states and the logits of its heads.

    Args:
        model: encoder with its heads.
        parts: functions from states and positions, one for each output.
    """

    def __init__(
        self, model: EncoderModel, parts: list[Callable[[Tensor, Tensor], Tensor]]
    ) -> None:
        super().__init__()
        self.model = model
        self.parts = parts

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Compute all outputs from [B, L] int64 tensors; the mask is 0 at padding, on any side."""
        # Positions are counted by the mask: with padding on the left the first token has position
        # 0.
        indices = attention_mask.cumsum(1) - 1
        positions = torch.where(attention_mask > 0, indices, -1)
        states = self.model(input_ids, positions, token_type_ids)
        return tuple(part(states, positions) for part in self.parts)


def _text(model: EncoderModel) -> _Graph:
    kinds = tuple(head.kind for head in model.spec.heads)
    heads: dict[str, dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
        "masked_lm": {"logits": lambda s, _: model.masked_lm_logits(s)},
        "next_sentence": {"logits": model.next_sentence_logits},
        "sequence": {"logits": model.sequence_logits},
        "token": {"logits": lambda s, _: model.token_logits(s)},
        "span": {
            "start_logits": lambda s, _: model.span_logits(s)[..., 0],
            "end_logits": lambda s, _: model.span_logits(s)[..., 1],
        },
    }
    parts: dict[str, Callable[[Tensor, Tensor], Tensor]] = {}
    for kind in kinds:
        # For a single head, the logits get the name that programs expect.
        prefix = "" if len(kinds) == 1 else f"{kind}_"
        parts |= {f"{prefix}{name}": part for name, part in heads[kind].items()}
    parts["last_hidden_state"] = lambda s, _: s
    if model.spec.pooler:
        parts["pooler_output"] = model.pooled
    mask = torch.ones(_EXAMPLE, dtype=torch.int64)
    # Padding on both sides keeps the trace from taking a shortcut for full rows.
    mask[1, 4:] = mask[2, :2] = 0
    inputs = {"input_ids": torch.zeros_like(mask), "attention_mask": mask}
    if model.spec.embedding.num_segments is not None:
        inputs["token_type_ids"] = torch.zeros_like(mask)
    axes = {name: {0: "batch", 1: "length"} for name in inputs}
    return _Graph(_Text(model, list(parts.values())), inputs, axes, list(parts))


class _Image(nn.Module):
    """An image encoder as a function from pixels to states and class logits or a pooled state."""

    def __init__(self, model: VisionModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, ...]:
        """Compute all outputs from pixels [B, C, h, w] float32."""
        states = self.model(pixel_values)
        if self.model.classifier is not None:
            return self.model.class_logits(states), states
        return states, self.model.pooled(states)


def _image(model: VisionModel) -> _Graph:
    spec = model.spec
    pixels = torch.zeros(_EXAMPLE[0], spec.channels, spec.image_size, spec.image_size)
    classifies = model.classifier is not None
    names = (
        ["logits", "last_hidden_state"] if classifies else ["last_hidden_state", "pooler_output"]
    )
    # Only the batch is dynamic: the table of positions fixes the size of an image.
    return _Graph(_Image(model), {"pixel_values": pixels}, {"pixel_values": {0: "batch"}}, names)


_GRAPHS: dict[str, Callable[[Any], _Graph]] = {"encoder": _text, "vision": _image}


def _trace(graph: _Graph) -> Any:
    """Return the graph as an `ONNXProgram`."""
    # Axes of the same name share a symbol, so that the graph knows that they are equal.
    sizes = {axis: torch.export.Dim(axis) for axes in graph.axes.values() for axis in axes.values()}
    shapes = tuple(
        {place: sizes[axis] for place, axis in graph.axes[name].items()} for name in graph.inputs
    )
    # C kernels cannot be traced; the definition is plain PyTorch.
    with torch.no_grad(), _quiet(), by_definition(graph.module):
        return torch.onnx.export(
            graph.module.eval(),
            tuple(graph.inputs.values()),
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=list(graph.inputs),
            output_names=graph.outputs,
            verbose=False,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings and log messages of the exporter within a context, but not errors."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)

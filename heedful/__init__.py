"""Heedful: train Transformers on your own data, run them, and look inside them.

For example:

    import heedful

    translator = heedful.load("RUN")
    translator.translate(["A dog runs."], beam=4)

    writer = heedful.load_generator("OTHER_RUN")
    writer.generate(["Once upon a time"], max_length=50)

    encoder = heedful.load_encoder("BERT")
    encoder.fill(["The [MASK] sat"], top=3)

    seer = heedful.load_vision("VIT")
    seer.classify(["cat.png"], top=3)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from heedful.apps.comparison.results import Comparison
    from heedful.device import RunningPrecision
    from heedful.events import Events
    from heedful.models.shape import RotaryScaling
    from heedful.pipelines.fillers import Filler
    from heedful.pipelines.image_classification import ImagePipeline
    from heedful.pipelines.text_encoding import EncoderPipeline
    from heedful.pipelines.text_generation import GenerationPipeline
    from heedful.pipelines.translation import TranslationPipeline

__version__ = "0.1.0"

__all__ = [
    "__version__", "compare", "load", "load_encoder", "load_filler", "load_generator",
    "load_vision", "sweep",
]  # fmt: skip


def load(
    path: str | Path | Sequence[str | Path],
    *,
    device: str = "auto",
    precision: RunningPrecision = "auto",
    shortlist: bool | str | Path = False,
) -> TranslationPipeline:
    """Load a translator that takes raw text.

    Args:
        path: a model directory, a run directory (its best model) or a Hugging Face directory;
            several make an ensemble.
        device: auto, cpu, cuda, cuda:1 or mps.
        precision: auto (float32, on the fastest route that is as exact), fp32, bf16, fp16 or int8.
        shortlist: whether translations are made only of the tokens on the (first) model's
            shortlist, or on that of another file; see `heedful shortlist`.

    Raises:
        ModelError: when the directory holds no model, one of a newer schema, or no shortlist.
        ConfigError: when the device or precision is not to be had.
    """
    from heedful.interop.model_loading import load_any
    from heedful.pipelines.translation import TranslationPipeline

    return TranslationPipeline.load(
        path, device=device, precision=precision, shortlist=shortlist, read=load_any
    )


def load_generator(
    path: str | Path,
    *,
    device: str = "auto",
    precision: RunningPrecision = "auto",
    rotary_scaling: RotaryScaling | None = None,
    rotary_factor: float | None = None,
    rotary_original_length: int | None = None,
) -> GenerationPipeline:
    """Load a language model that continues raw text.

    Args:
        path: a model directory, a run directory (its best model) or a Hugging Face directory.
        device: auto, cpu, cuda, cuda:1 or mps.
        precision: auto (float32, on the fastest route that is as exact), fp32, bf16, fp16 or int8.
        rotary_scaling: linear, ntk, yarn or by_wavelength, to stretch the model's rotary positions
            to longer texts than it was trained on.
        rotary_factor: how many times longer texts get; it comes with the scaling.
        rotary_original_length: tokens of the texts before; those the model was made for if unset.

    Raises:
        ModelError: when the directory holds no model, or one that continues no text.
        ConfigError: when the device or precision is not to be had, or there are no rotary
            positions.
    """
    from heedful.interop.model_loading import load_any
    from heedful.models.rotary_override import stretching_reader
    from heedful.pipelines.text_generation import GenerationPipeline

    read = stretching_reader(load_any, rotary_scaling, rotary_factor, rotary_original_length)
    return GenerationPipeline.load(path, device=device, precision=precision, read=read)


def compare(
    configurations: Sequence[str | Path | Mapping[str, Any]]
    | Mapping[str, str | Path | Mapping[str, Any]] = (),
    *,
    out: str | Path,
    seeds: int = 3,
    max_flops: float | None = None,
    settings: Mapping[str, Any] | None = None,
    events: Events | None = None,
) -> Comparison:
    """Train configurations on the same data with the same budget, and compare them.

    What is finished is not done again: the same call, or one without configurations, goes on after
    a stop. `out` then holds table.json, table.md, page.html (with the extra studio), and an
    ordinary run directory for each variant and seed in runs/.

    Args:
        configurations: TOML files, presets, or settings by name; none to go on with those in `out`.
        out: folder of the comparison, created if missing.
        seeds: runs of each configuration; the first has its own seed, the others the next ones.
        max_flops: budget of each run in operations, by the cost model; otherwise all have the same
            `max_steps`, `max_minutes` and `max_epochs`.
        settings: replace those of all configurations, such as `{"max_steps": 300}`.
        events: receive progress and notes.

    Returns:
        The results; `finished` is False after Ctrl-C, or when a run failed.

    Raises:
        UserError: and its kinds, for configurations that cannot be compared, and files that are
            wrong.
    """
    from heedful.apps.comparison import compare_runs

    return compare_runs.compare(
        configurations, dict(settings or {}), Path(out), seeds, max_flops, events
    )


def sweep(
    configuration: str | Path | Mapping[str, Any],
    setting: str,
    values: Sequence[Any],
    *,
    out: str | Path,
    seeds: int = 3,
    max_flops: float | None = None,
    settings: Mapping[str, Any] | None = None,
    events: Events | None = None,
) -> Comparison:
    """Compare the values of one setting; all else is as for `compare`.

    Args:
        configuration: a TOML file, a preset, or settings.
        setting: dotted name, such as `model.width`.
        values: its values, each a variant.
        out, seeds, max_flops, settings, events: as for `compare`.

    Raises:
        UserError: as `compare` does.
    """
    from heedful.apps.comparison import compare_runs

    return compare_runs.sweep(
        configuration, setting, values, dict(settings or {}), Path(out), seeds, max_flops, events
    )


def load_encoder(
    path: str | Path, *, device: str = "auto", precision: RunningPrecision = "auto"
) -> EncoderPipeline:
    """Load an encoder that fills masks, classifies, tags or answers, by the heads it has.

    Args:
        path: a model directory, a run directory (its best model) or a Hugging Face directory.
        device: auto, cpu, cuda, cuda:1 or mps.
        precision: auto (float32, on the fastest route that is as exact), fp32, bf16, fp16 or int8.

    Raises:
        ModelError: when the directory holds no model, or one that is no encoder of text.
        ConfigError: when the device or precision is not to be had.
    """
    from heedful.interop.model_loading import load_any
    from heedful.pipelines.text_encoding import EncoderPipeline

    return EncoderPipeline.load(path, device=device, precision=precision, read=load_any)


def load_filler(
    path: str | Path, *, device: str = "auto", precision: RunningPrecision = "auto"
) -> Filler:
    """Load an encoder, or an encoder-decoder, that fills the gaps of raw text.

    Args:
        path: a model directory, a run directory (its best model) or a Hugging Face directory.
        device: auto, cpu, cuda, cuda:1 or mps.
        precision: auto (float32, on the fastest route that is as exact), fp32, bf16, fp16 or int8.

    Raises:
        ModelError: when the directory holds no model, or one that knows no gaps.
        ConfigError: when the device or precision is not to be had.
    """
    from heedful.interop.model_loading import load_any
    from heedful.pipelines.fillers import load_filler

    return load_filler(path, device=device, precision=precision, read=load_any)


def load_vision(
    path: str | Path, *, device: str = "auto", precision: RunningPrecision = "auto"
) -> ImagePipeline:
    """Load a vision Transformer that labels images.

    Args:
        path: a model directory, a run directory (its best model) or a Hugging Face directory.
        device: auto, cpu, cuda, cuda:1 or mps.
        precision: auto (float32, on the fastest route that is as exact), fp32, bf16, fp16 or int8.

    Raises:
        ModelError: when the directory holds no model, or one that does not label images.
        ConfigError: when the device or precision is not to be had.
    """
    from heedful.interop.model_loading import load_any
    from heedful.pipelines.image_classification import ImagePipeline

    return ImagePipeline.load(path, device=device, precision=precision, read=load_any)

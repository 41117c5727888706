"""Heedful: train Transformers on your own data, run them, and look inside.

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
    from typing import Any, Literal

    from heedful.apps.comparison.compare_runs import Comparison
    from heedful.device import RunningPrecision
    from heedful.events import Events
    from heedful.models.rotary_override import RotaryScaling
    from heedful.pipelines.fillers import Filler
    from heedful.pipelines.image_classification import ImagePipeline
    from heedful.pipelines.text_encoding import EncoderPipeline
    from heedful.pipelines.text_generation import GenerationPipeline
    from heedful.pipelines.translation import TranslationPipeline
    from heedful.registry import Entry

__version__ = "0.1.0"

__all__ = [
    "__version__", "compare", "load", "load_encoder", "load_filler", "load_generator",
    "load_vision", "register", "sweep",
]  # fmt: skip


def load(
    path: str | Path | Sequence[str | Path],
    *,
    device: str = "auto",
    precision: RunningPrecision = "auto",
    shortlist: bool | str | Path = False,
    split: Literal["sentences", "lines", "none"] | None = None,
) -> TranslationPipeline:
    """Load a translator that takes raw text.

    Args:
        path: model directory, run directory (its best model) or Hugging Face directory; several
            make an ensemble.
        device: auto, cpu, cuda, cuda:1 or mps.
        precision: auto (float32 by the fastest exact method), fp32, bf16, fp16 or int8.
        shortlist: shortlist of the tokens that translations are made of: True for that of the
            (first) model, or a file; see `heedful shortlist`.
        split: parts of a text that are translated apart: `sentences`, `lines`, or `none`, where
            line breaks become spaces; as the model has learned if unset.

    Raises:
        ModelError: when the directory holds no model, one of a newer schema, or no shortlist.
        ConfigError: when the device or precision is not available.
    """
    # Imported in each function: `import heedful` alone loads no torch, which takes a second.
    from heedful.interop.model_loading import load_any
    from heedful.pipelines.translation import TranslationPipeline

    return TranslationPipeline.load(
        path,
        device=device,
        precision=precision,
        shortlist=shortlist,
        split=split,
        read=load_any,
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
        path: model directory, run directory (its best model) or Hugging Face directory.
        device: auto, cpu, cuda, cuda:1 or mps.
        precision: auto (float32 by the fastest exact method), fp32, bf16, fp16 or int8.
        rotary_scaling: method that extends rotary positions to longer texts than in training:
            linear, ntk, yarn or by_wavelength.
        rotary_factor: factor by which texts may be longer, required with `rotary_scaling`.
        rotary_original_length: length of texts in training, in tokens; the model's own if None.

    Raises:
        ModelError: when the directory holds no model, or one that continues no text.
        ConfigError: when the device or precision is not available, or the model has no rotary
            positions.
    """
    from heedful.interop.model_loading import load_any
    from heedful.models.rotary_override import stretching_reader
    from heedful.pipelines.text_generation import GenerationPipeline

    # Stretched by the reader, as the pipeline makes a copy of the model for its inference engine.
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

    Finished runs are not repeated: the same call, or one without configurations, continues after an
    interruption. `out` then holds table.json, table.md, page.html (with the extra studio), and an
    ordinary run directory for each variant and seed in runs/.

    Args:
        configurations: TOML files, presets, or settings by name; empty to continue the comparison
            in `out`.
        out: folder of the comparison, created if it does not exist.
        seeds: number of runs of each configuration, with consecutive seeds from its own on.
        max_flops: budget of each run in operations, by the cost model; if None, all configurations
            need the same `max_steps`, `max_minutes` and `max_epochs`.
        settings: settings that override those of all configurations, such as `{"max_steps": 300}`.
        events: receiver of progress and notes.

    Returns:
        The results; `finished` is False after Ctrl-C, or when a run failed.

    Raises:
        UserError: when configurations cannot be compared, or a file is wrong.
    """
    # Imported here: comparisons are an application, which the core must not load.
    from heedful.apps.comparison.compare_runs import run_comparison
    from heedful.apps.comparison.plan import variants_of

    variants = variants_of(configurations, settings or {})
    return run_comparison(variants, Path(out), seeds, max_flops, events)


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
    """Compare the values of one setting, as `compare` does for configurations.

    Args:
        configuration: TOML file, preset, or settings.
        setting: dotted name of the setting, such as `model.width`.
        values: values of the setting, each a variant.
        out, seeds, max_flops, settings, events: options of `compare`.

    Raises:
        UserError: as `compare` does.
    """
    # Imported here: comparisons are an application, which the core must not load.
    from heedful.apps.comparison.compare_runs import run_comparison
    from heedful.apps.comparison.plan import sweep_variants

    variants = sweep_variants(configuration, setting, values, settings or {})
    return run_comparison(variants, Path(out), seeds, max_flops, events)


def load_encoder(
    path: str | Path, *, device: str = "auto", precision: RunningPrecision = "auto"
) -> EncoderPipeline:
    """Load an encoder that fills masks, classifies, tags or answers, depending on its heads.

    Args:
        path: model directory, run directory (its best model) or Hugging Face directory.
        device: auto, cpu, cuda, cuda:1 or mps.
        precision: auto (float32 by the fastest exact method), fp32, bf16, fp16 or int8.

    Raises:
        ModelError: when the directory holds no model, or one that is no encoder of text.
        ConfigError: when the device or precision is not available.
    """
    from heedful.interop.model_loading import load_any
    from heedful.pipelines.text_encoding import EncoderPipeline

    return EncoderPipeline.load(path, device=device, precision=precision, read=load_any)


def load_filler(
    path: str | Path, *, device: str = "auto", precision: RunningPrecision = "auto"
) -> Filler:
    """Load an encoder or an encoder-decoder that fills the gaps of raw text.

    Args:
        path: model directory, run directory (its best model) or Hugging Face directory.
        device: auto, cpu, cuda, cuda:1 or mps.
        precision: auto (float32 by the fastest exact method), fp32, bf16, fp16 or int8.

    Raises:
        ModelError: when the directory holds no model, or one that cannot fill gaps.
        ConfigError: when the device or precision is not available.
    """
    from heedful.interop.model_loading import load_any
    from heedful.pipelines.fillers import load_filler

    return load_filler(path, device=device, precision=precision, read=load_any)


def load_vision(
    path: str | Path, *, device: str = "auto", precision: RunningPrecision = "auto"
) -> ImagePipeline:
    """Load a vision Transformer that labels images.

    Args:
        path: model directory, run directory (its best model) or Hugging Face directory.
        device: auto, cpu, cuda, cuda:1 or mps.
        precision: auto (float32 by the fastest exact method), fp32, bf16, fp16 or int8.

    Raises:
        ModelError: when the directory holds no model, or one that does not label images.
        ConfigError: when the device or precision is not available.
    """
    from heedful.interop.model_loading import load_any
    from heedful.pipelines.image_classification import ImagePipeline

    return ImagePipeline.load(path, device=device, precision=precision, read=load_any)


def register(entry: Entry) -> Entry:
    """Register a part from outside the package, which then trains and loads like the package's.

    Args:
        entry: the spec of a mixer or a position bias, a tokenizer, all three classes, or an
            `Architecture` of Hugging Face; see the guide "Parts of your own".

    Returns:
        The entry, so that this serves as a decorator.

    Raises:
        ConfigError: when it is none of these, or another entry has its name.
    """
    from heedful import registry

    return registry.register(entry)

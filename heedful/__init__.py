"""Heedful: train Transformers on your own data, run them, and look inside.

For example:

    import heedful

    heedful.train([("A dog runs.", "Ein Hund rennt."), ...], "RUN", max_minutes=5)
    translator = heedful.load("RUN")
    translator.translate(["A dog runs."], beam=4)

    heedful.load("OTHER_RUN").generate(["Once upon a time"], max_length=50)
    heedful.load("BERT").fill(["The [MASK] sat"], top=3)
    heedful.load("VIT").classify(["cat.png"], top=3)
    heedful.embed("BERT", ["The cat sat", "A dog runs"])

`heedful.nn` has parts for models of one's own, `heedful.inspect` looks inside.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Literal

    import numpy as np
    import numpy.typing as npt

    from heedful import inspect as inspect
    from heedful import nn as nn
    from heedful.apps.comparison.compare_runs import Comparison
    from heedful.apps.evaluation.model_scores import evaluate as evaluate
    from heedful.apps.train_from_python import train as train
    from heedful.device import RunningPrecision
    from heedful.events import Events
    from heedful.models.rotary_override import RotaryScaling
    from heedful.registry import Entry

__version__ = "0.1.0"

_PACKAGES = ("evaluate", "inspect", "nn", "train")
"""Packages that are loaded when they are asked for; `train` and `evaluate` can be called."""

__all__ = [
    "__version__", "compare", "embed", "evaluate", "inspect", "load", "nn", "register", "sweep",
    "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _PACKAGES:
        raise AttributeError(f"module 'heedful' has no attribute {name!r}")
    return import_module(f"heedful.{name}")


def __dir__() -> list[str]:
    return __all__


def load(
    path: str | Path | Sequence[str | Path],
    *,
    device: str = "auto",
    precision: RunningPrecision = "auto",
    shortlist: bool | str | Path | None = None,
    split: Literal["sentences", "lines", "none"] | None = None,
    numbers: Literal["model", "keep", "localize"] | None = None,
    copy_unknown: bool | None = None,
    rotary_scaling: RotaryScaling | None = None,
    rotary_factor: float | None = None,
    rotary_original_length: int | None = None,
) -> Any:
    """Load a model that takes raw text or images: what it can do follows from its kind.

    Args:
        path: model directory, run directory (its best model), Hugging Face directory, or the name
            of a model at hand or on the hub; several make an ensemble of translators.
        device: auto, cpu, cuda, cuda:1 or mps.
        precision: auto (float32 by the fastest exact method), fp32, bf16, fp16 or int8.
        shortlist: shortlist of the tokens that translations are made of: True for that of the
            (first) model, or a file; see `heedful shortlist`.
        split: parts of a text that are translated apart: `sentences`, `lines`, or `none`, where
            line breaks become spaces; as the model has learned if unset.
        numbers: form of numbers in translations: `model`, `keep`, or `localize`, see the guide on
            translating; what the model's directory states if unset, else `model`.
        copy_unknown: true to copy words with unknown characters, and names that the model misspells
            or leaves out; what the model's directory states if unset, else false.
        rotary_scaling: method that extends a language model's rotary positions to longer texts than
            in training: linear, ntk, yarn or by_wavelength.
        rotary_factor: factor by which texts may be longer, required with `rotary_scaling`.
        rotary_original_length: length of texts in training, in tokens; the model's own if None.

    Returns:
        A `TranslationPipeline` (`translate`, `score`, `fill`), a `GenerationPipeline` (`generate`,
        `stream`), an `EncoderPipeline` (`fill`, `classify`, `tag`, `answer`, `embed`), an
        `ImagePipeline` (`classify`), a `TwoTowersPipeline` (`classify`, `embed`, `embed_images`,
        `retrieve`, `recall`), a `TranscriptionPipeline` (`generate`) or a `DrawingPipeline`
        (`draw`).

    Raises:
        ModelError: when the directory holds no model, one of a newer schema, or no shortlist, or
            the model has no such option.
        ConfigError: when the device or precision is not available.
    """
    # Imported in each function: `import heedful` alone loads no torch, which takes a second.
    from heedful.apps import loading

    return loading.load(
        path,
        device=device,
        precision=precision,
        shortlist=shortlist,
        split=split,
        numbers=numbers,
        copy_unknown=copy_unknown,
        rotary=(rotary_scaling, rotary_factor, rotary_original_length),
    )


def embed(
    model: Any,
    texts: Sequence[str],
    *,
    pooling: Literal["first", "last", "mean", "max"] | None = None,
    normalize: bool | None = None,
) -> npt.NDArray[np.float32]:
    """Return a vector for each text; `heedful.load(MODEL).embed` does so for a loaded encoder.

    Args:
        model: encoder, loaded or by its directory or name.
        texts: texts of any kind.
        pooling, normalize: arguments of `EncoderPipeline.embed`.

    Returns:
        [texts, D] float32.

    Raises:
        ModelError: when the model is no encoder of text and no language model.
        ConfigError, DataError: as `EncoderPipeline.embed` does.
    """
    from heedful.pipelines.any_pipeline import loaded_as

    pipeline = loaded_as("encoder", model)
    vectors: npt.NDArray[np.float32] = pipeline.embed(texts, pooling=pooling, normalize=normalize)
    return vectors


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


def register(entry: Entry) -> Entry:
    """Register a part from outside the package, which then trains and loads like the package's.

    Args:
        entry: the spec of a mixer or a position bias, a tokenizer, a metric or a tracker, all
            classes, a `RegisteredTask`, or an `Architecture` of Hugging Face; see the guide
            "Parts of your own".

    Returns:
        The entry, so that this serves as a decorator.

    Raises:
        ConfigError: when it is none of these, or another entry has its name.
    """
    from heedful import registry

    return registry.register(entry)

"""`heedful info` and `heedful presets`: parameters, operations and memory of models."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from heedful.cli.text_io import Output, Report, engineering, say, show_table, show_values
from heedful.errors import ModelError, TorchMissing, UserError, lacks_torch

if TYPE_CHECKING:
    from heedful.models.model_spec import ModelSpec, TranslatorSpec


def info(
    model: str,
    /,
    *,
    vocabulary: int | None = None,
    source_tokens: int = 25,
    target_tokens: int = 25,
    beam: int = 4,
    batch_tokens: int = 4096,
    precision: Literal["fp32", "bf16"] = "fp32",
    output: Output = Output(),
) -> None:
    """Show a model's parameters, operations and memory.

    The tables list the parameters of every component, the floating-point operations of a training
    pair and of a translation, the memory of weights and caches, and the peak memory of training and
    decoding on a CPU. For models other than translators, they list parameters and peak memory, and
    for image models the operations of one image. A directory takes precedence over a preset of the
    same name.

    Example: `heedful info transformer-base --vocabulary 37000 --precision bf16`

    Args:
        model: Model or run directory, name of a model, or preset.
        vocabulary: Vocabulary size of a preset; not for models, which have their own.
        source_tokens: Length of a source sentence in tokens.
        target_tokens: Length of the translation in tokens.
        beam: Beam width of decoding.
        batch_tokens: Size of a batch in tokens: tokens of each side in training, tokens of all
            hypotheses in decoding.
        precision: Precision of matmuls, for estimates of peak memory.
    """
    counts = (source_tokens, target_tokens, beam, batch_tokens, vocabulary or 1)
    if min(counts) < 1:
        raise UserError("Lengths, beam and vocabulary must be at least 1", where="heedful info")
    report = Report("info", output, model=model, vocabulary=vocabulary)
    spec: Any
    spec, facts = find_spec(model, vocabulary)
    workload = _Workload(batch_tokens, max(source_tokens, target_tokens), beam, precision)
    if lacks_torch():
        _report_stored(model, spec, facts, report)
        return
    from heedful.models.cost import count_parameters, parameter_table

    if spec.kind != "translator":
        _report_modules(model, spec, facts, workload, report)
        return
    count = count_parameters(spec)
    table = [{**asdict(row), "total": row.total} for row in parameter_table(spec)]
    facts = {
        "parameters": {"total": count, "table": table},
        "operations": _operations(spec, source_tokens, target_tokens, beam),
        "memory_bytes": _memory(spec, source_tokens, target_tokens, beam, batch_tokens),
        "peak_memory": workload.peaks(spec, count),
        "model": spec.plain(),
        **facts,
    }
    if not output.json:
        _show(model, facts)
    report.finish(facts)


@dataclass(frozen=True)
class _Workload:
    """The batches whose peak memory is estimated."""

    batch_tokens: int
    length: int
    beam: int
    precision: Literal["fp32", "bf16"]

    def peaks(self, spec: ModelSpec, parameters: int) -> dict[str, Any]:
        """Return the peak memory of training and decoding and the free memory, in bytes."""
        import torch

        from heedful.engines.cost_memory import decoding_peak, training_peak
        from heedful.memory import available_bytes
        from heedful.nn.work import BFLOAT16, FLOAT32
        from heedful.pipelines.batching import MOST_AT_ONCE, batches_at_once

        number_bytes = FLOAT32 if self.precision == "fp32" else BFLOAT16
        at_once = batches_at_once(torch.device("cpu"), MOST_AT_ONCE)
        sizes = (spec, self.batch_tokens)
        options: dict[str, Any] = {
            "length": self.length,
            "parameters": parameters,
            "number_bytes": number_bytes,
        }
        peaks = {
            "training": training_peak(*sizes, **options),
            "decoding": decoding_peak(*sizes, **options, beam=self.beam, at_once=at_once),
        }
        return {
            "batch_tokens": self.batch_tokens,
            "precision": self.precision,
            "batches_at_once": at_once,
            **{verb: {**asdict(peak), "total": peak.total} for verb, peak in peaks.items()},
            "available": available_bytes(),
        }


_ORIGIN = ("model_type", "repository", "commit")


def find_spec(model: str, vocabulary: int | None) -> tuple[ModelSpec, dict[str, Any]]:
    """Return the spec of a model and further facts for the report."""
    from heedful.models.model_directory import (
        HuggingFaceConfig,
        find_model_directory,
        load_tokenizers,
        locate,
        read_facts,
    )
    from heedful.models.preset_files import (
        own_vocabulary_error,
        preset_names,
        preset_spec,
        published_parameters,
    )

    if not Path(model).exists() and model in preset_names():
        published = published_parameters(model)
        known: dict[str, Any] = {"training": {}}
        if published is not None:
            known["published_parameters"] = published
        return preset_spec(model, vocabulary), known
    try:
        path = locate(Path(model))
    except ModelError as error:
        if Path(model).name != model:  # OWNER/NAME cannot be a preset
            raise
        presets = f"or take a preset ({', '.join(preset_names())})"
        raise ModelError(
            error.what, where=error.where, remedy=f"{error.remedy}; {presets}"
        ) from error
    if not path.exists():
        raise ModelError(
            "There is neither a model directory nor a preset of this name",
            where=model,
            remedy=f"Check the path; presets are {', '.join(preset_names())}",
        )
    if vocabulary is not None:
        raise own_vocabulary_error(model)
    directory = find_model_directory(path)
    try:
        facts = read_facts(directory)
    except HuggingFaceConfig:
        from heedful.interop.hugging_face import describe_any  # loads PyTorch

        described = describe_any(path)
        origin = {name: described.origin[name] for name in _ORIGIN if name in described.origin}
        return described.spec, {"training": {}, "origin": origin}
    known = {"training": dict(facts.training)}
    if facts.origin:
        known["origin"] = dict(facts.origin)
    pair = load_tokenizers(directory, facts.spec)
    # An imported tokenizer has its own rules in its file, and no attribute.
    if (rule := getattr(pair and pair.source, "normalization", None)) is not None:
        known["normalization"] = rule
    return facts.spec, known


def _report_stored(model: str, spec: ModelSpec, facts: dict[str, Any], report: Report) -> None:
    """Report the parameters of a model, where PyTorch is missing, which computes the rest."""
    from heedful.models.compact_weights import stored_parameters
    from heedful.models.model_directory import find_model_directory
    from heedful.models.preset_files import preset_names

    if not Path(model).exists() and model in preset_names():
        raise TorchMissing("A preset")
    counts = stored_parameters(find_model_directory(Path(model)))
    total = sum(counts.values())
    if not report.output.json:
        rows = [(name, f"{count:,}") for name, count in counts.items()]
        show_table(f"{model}: {total:,} parameters", ("module", "parameters"), rows, numbers=1)
        _show_text(facts)
        say(str(TorchMissing("The count of operations and memory")))
    table = [{"component": name, "total": count} for name, count in counts.items()]
    report.finish({"parameters": {"total": total, "table": table}, "model": spec.plain(), **facts})


def _report_modules(
    model: str, spec: ModelSpec, facts: dict[str, Any], workload: _Workload, report: Report
) -> None:
    """Report parameters by module and peak memory, for models other than translators."""
    from heedful.models.cost import parameters_by_module

    counts = parameters_by_module(spec)
    total = sum(counts.values())
    operations = _image_operations(spec)
    # Estimates of memory are sums over blocks of layers.
    peaks = workload.peaks(spec, total) if spec.stacks() else None
    if not report.output.json:
        published = facts.get("published_parameters")
        beside = "" if published is None else f" (published: {published:,})"
        title = f"{model}: {spec.kind.replace('_', ' ')}, {total:,} parameters{beside}"
        rows = [(name, f"{count:,}") for name, count in counts.items()]
        show_table(title, ("module", "parameters"), rows, numbers=1)
        if operations:
            show_values("Operations", ("for", "FLOP"), operations, engineering)
        if peaks is not None:
            _show_peaks(peaks)
        _show_text(facts)
    table = [{"component": name, "total": count} for name, count in counts.items()]
    parameters = {"total": total, "table": table}
    facts = {"parameters": parameters, "peak_memory": peaks, "model": spec.plain(), **facts}
    report.finish(facts | ({"operations": operations} if operations else {}))


def _image_operations(spec: Any) -> dict[str, int]:
    """Return the operations of inference and training on an image; empty for other models."""
    from heedful.models.cost import BACKWARD_PER_FORWARD, image_work

    if spec.reads != "images":
        return {}
    forward = image_work(spec).total
    return {"image": forward, "training_image": (1 + BACKWARD_PER_FORWARD) * forward}


def _operations(
    spec: TranslatorSpec, source_tokens: int, target_tokens: int, beam: int
) -> dict[str, int]:
    from heedful.models.cost import decoding_cost, training_cost

    training = training_cost(spec, source_tokens, target_tokens)
    decoding = decoding_cost(spec, source_tokens, target_tokens, beam)
    return {
        "source_tokens": source_tokens,
        "target_tokens": target_tokens,
        "beam": beam,
        "training_pair": training.total.total,
        "training_per_target_token": training.total.total // target_tokens,
        "encoding": decoding.encoding.total,
        "decoding_first_step": decoding.first_step.total,
        "decoding_last_step": decoding.last_step.total,
        "translation": decoding.total.total,
    }


def _memory(
    spec: TranslatorSpec, source_tokens: int, target_tokens: int, beam: int, batch_tokens: int
) -> dict[str, int]:
    from heedful.engines.cost_memory import training_memory
    from heedful.models.cost import decoding_memory

    training = training_memory(spec, batch_tokens, batch_tokens)
    decoding = decoding_memory(spec, source_tokens, target_tokens, beam=beam)
    return {
        "training_batch_tokens": batch_tokens,
        "training_weights_gradients_moments": training.fixed,
        "training_activations": training.activations,
        "training_loss": training.loss,
        "training": training.total,
        "decoding_weights": decoding.weights,
        "decoding_cache": decoding.cross_cache + decoding.self_cache,
        "decoding": decoding.total,
    }


def _show(model: str, facts: dict[str, Any]) -> None:
    from heedful.models.cost import human_bytes

    columns = ("part", "component", "each", "count", "total", "note")
    rows = [
        [f"{row[name]:,}" if isinstance(row[name], int) else row[name] for name in columns]
        for row in facts["parameters"]["table"]
    ]
    show_table(f"{model}: {facts['parameters']['total']:,} parameters", columns, rows)
    operations, memory = dict(facts["operations"]), dict(facts["memory_bytes"])
    lengths = (operations.pop(name) for name in ("source_tokens", "target_tokens", "beam"))
    title = "Operations: {} source and {} target tokens, beam {}".format(*lengths)
    show_values(title, ("for", "FLOP"), operations, engineering)
    batch = memory.pop("training_batch_tokens")
    title = f"Memory in float32: batches of {batch:,} positions to train, one sentence to translate"
    show_values(title, ("for", "bytes"), memory, human_bytes)
    _show_peaks(facts["peak_memory"])
    _show_text(facts)


_SPELLING = {
    "none": "as it is",
    "nfc": "NFC, usual spaces, no invisible signs",
    "compatibility": "NFC, usual spaces, no invisible signs, usual forms of letters",
}
_SPELLING |= {f"{name}-2": _SPELLING[name] for name in ("nfc", "compatibility")}


def _show_text(facts: dict[str, Any]) -> None:
    """Print facts about a model's training and the normalisation of its text."""
    training = facts["training"]
    if "step" in training:
        say(f"published: {training['kind']} after {training['step']:,} updates")
    if scores := training.get("scores"):
        count = f" ({examples:,} examples)" if (examples := training["sentences"]) else ""
        shown = ", ".join(f"{metric} {score:.4g}" for metric, score in scores.items())
        say(f"scores on the validation set{count}: {shown}")
    for metric, signature in training.get("signatures", {}).items():
        say(f"{metric}: {signature}")
    if rule := facts.get("normalization"):
        say(f"text is read {_SPELLING[rule]} (tokenizer.normalization = {rule})")


def _show_peaks(peaks: dict[str, Any]) -> None:
    from heedful.engines.cost_memory import describe_fit
    from heedful.models.cost import human_bytes

    parts = ("process", "model", "batch", "slack", "total")
    at_once = peaks["batches_at_once"]
    decoding = "decoding" if at_once == 1 else f"decoding, {at_once} batches side by side"
    show_table(
        f"Peak memory of a process on a processor: batches of {peaks['batch_tokens']:,} positions, "
        f"{peaks['precision']}",
        ("for", *parts),
        [
            (name, *(human_bytes(peaks[verb][part]) for part in parts))
            for verb, name in (("training", "training"), ("decoding", decoding))
        ],
        numbers=1,
    )
    available = peaks["available"]
    for verb in ("training", "decoding"):
        say(f"{verb}: {describe_fit(peaks[verb]['total'], available)}")


def presets(*, output: Output = Output()) -> None:
    """List the named model sizes.

    A preset is a set of settings: `heedful train RUN --preset tiny …` starts from it, and flags
    override single settings. Presets of published models fit some tasks only: `heedful train RUN
    --task causal_lm --preset gpt2 …` trains a new model of that architecture on your text. Their
    published number of parameters is listed beside the number counted here. `heedful info tiny`
    shows the components and the cost of a preset.

    Example: `heedful presets --json`
    """
    from heedful.models.preset_files import preset_names

    report = Report("presets", output)
    facts = [_preset_facts(name) for name in preset_names()]
    facts.sort(key=lambda preset: preset["parameters"])
    if not output.json:
        rows = [
            (
                each["name"],
                each["description"],
                "all of text" if len(each["tasks"]) > 4 else ", ".join(each["tasks"]),
                _count(each["vocabulary"]),
                engineering(each["parameters"]),
                _count(each["parameters"]),
                _count(each["published_parameters"]),
            )
            for each in facts
        ]
        columns = ("name", "for", "tasks", "pieces", "parameters", "exactly", "published")
        show_table("Presets", columns, rows, numbers=4)
    report.finish({"presets": facts})


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _preset_facts(name: str) -> dict[str, Any]:
    from heedful.models.cost import count_parameters
    from heedful.models.preset_files import (
        describe_preset,
        preset_spec,
        preset_tasks,
        published_parameters,
    )

    spec = preset_spec(name)
    return {
        "name": name,
        "description": describe_preset(name),
        "kind": spec.kind,
        "tasks": list(preset_tasks(name)),
        "parameters": count_parameters(spec),
        "published_parameters": published_parameters(name),
        "vocabulary": spec.vocabularies().get("target"),
    }

"""Adapters in the format of Hugging Face's PEFT: adapter_config.json, adapter_model.safetensors.

A low-rank update there belongs to one of their matrices, which may hold several of ours (queries,
keys and values of GPT-2). The rules of an architecture move rows, and `up` has the rows of its
matrix, so they convert it as they convert a weight. Updates of several of our matrices in one of
theirs become one update of their ranks together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from heedful.errors import ModelError
from heedful.interop.architecture import Architecture, find_architecture, fitting_architecture
from heedful.interop.hf_files import read_json_file, write_json_file
from heedful.interop.hugging_face import describe_any, read_any_weights
from heedful.interop.tensor_table import Rule, first_names
from heedful.models.build import stored_shapes
from heedful.models.checkpoint import write_directory
from heedful.models.model_spec import ModelSpec
from heedful.train.lora import DOWN, UP, Adapter, fingerprint, merge_adapter

if TYPE_CHECKING:
    from heedful.models.build import AnyModel

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"

Shapes = Mapping[str, torch.Size]

_PREFIX = "base_model.model."
_A, _B = ".lora_A.weight", ".lora_B.weight"

_READ = ("peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern")
# Settings of training, or of which tensors there are, which the file of tensors shows itself.
_WITHOUT_EFFECT = (
    "auto_mapping",
    "base_model_name_or_path",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
)
# Initial values that leave the base model as it is; others (PiSSA, LoftQ) change its weights.
_INITIAL = (True, False, "gaussian", "eva", "orthogonal")


def is_peft(directory: Path) -> bool:
    """Return True for the directory of an adapter of PEFT."""
    return (directory / CONFIG_NAME).is_file()


def merge_peft(base: Path, adapter: Path, out: Path) -> AnyModel:
    """Merge an adapter of PEFT into its base model and write the merged model.

    Args:
        base: a model directory, a run directory or a Hugging Face directory.
        adapter: directory of the adapter.
        out: model directory to write; its parent must exist.

    Returns:
        The merged model.

    Raises:
        ModelError: when one of them cannot be read, or the base model is none of Hugging Face's.
        RunError: when the directory cannot be written.
    """
    described = describe_any(base)
    model_type = described.origin.get("model_type")
    if model_type is None:
        raise ModelError(
            "The base model is no model of Hugging Face, to whose modules the adapter belongs",
            where=str(adapter),
            remedy="Give the model that the adapter was trained on, imported or as it is",
        )
    scale, tensors = read_peft(adapter, described.spec, model_type)
    weights = read_any_weights(base)
    names = [name.removesuffix(UP) for name in tensors if name.endswith(UP)]
    # The format names no weights that it belongs to, so any model of these shapes is accepted.
    known = fingerprint({name: weights[f"{name}.weight"] for name in names})
    change = Adapter(described.spec, scale, known, {}, tensors, None)
    return merge_adapter(base, change, out, where=str(adapter))


def export_peft(adapter: Path, out: Path) -> str:
    """Write an adapter of ours in the format of PEFT; return the architecture of its base model.

    Args:
        adapter: an adapter's directory, or that of a run.
        out: directory to write, whose parent exists.

    Raises:
        ModelError: when the adapter is missing, or its model is none of Hugging Face's.
        RunError: when the directory cannot be written.
    """
    change = Adapter.load(adapter)
    # Beside the adapter of a run stands its model, which knows where the base model came from.
    models = (path / "model" for path in (adapter, adapter.parent) if (path / "model").is_dir())
    model = next(models, None)
    origin = {} if model is None else describe_any(model).origin
    return write_peft(change.tensors, change.scale, change.spec, origin, out)


def read_peft(directory: Path, spec: ModelSpec, model_type: str) -> tuple[float, dict[str, Tensor]]:
    """Read the low-rank updates of an adapter.

    Args:
        directory: directory with both files.
        spec: spec of the base model.
        model_type: architecture of the base model there.

    Returns:
        The factor of the updates, and NAME.down [r, in] and NAME.up [out, r] by the canonical names
        of our matrices.

    Raises:
        ModelError: when the adapter is damaged, is no LoRA, has a setting that changes what it
            computes and is unknown here, or has tensors that the model has no matrix for.
    """
    where = str(directory / CONFIG_NAME)
    config, tensors = _read_files(directory)
    _check_settings(config, where)
    architecture = find_architecture(model_type, where=where)
    rules = _rules_by_module(architecture, spec)
    shapes = stored_shapes(spec)
    modules = sorted({name.removesuffix(_A) for name in tensors if name.endswith(_A)})
    unknown = set(tensors) - {module + end for module in modules for end in (_A, _B)}
    updates: dict[str, Tensor] = {}
    scale = _scale(config, "")
    for module in modules:
        name = module.removeprefix(_PREFIX)
        rule = next(
            (rules[each] for each in (name, *_without_prefixes(name)) if each in rules), None
        )
        down, up = tensors[module + _A], tensors.get(module + _B)
        if rule is None or up is None:
            unknown.add(module)
            continue
        # One factor for all: what a pattern says of this module goes into its `up`.
        up = up.float() * (_scale(config, name) / scale)
        is_transposed = _is_transposed(rule, shapes)
        try:
            ups = rule.to_ours([up.T.contiguous() if is_transposed else up])
        except RuntimeError:  # of a split that does not fit the rows
            unknown.add(module)
            continue
        for ours, part in zip(rule.ours, ups, strict=True):
            matrix = ours.removesuffix(".weight")
            updates |= {matrix + DOWN: down.float(), matrix + UP: part.contiguous()}
    if unknown or not updates:
        raise ModelError(
            f"The adapter has tensors without a matrix here: {first_names(sorted(unknown))}"
            if unknown
            else "The adapter holds no low-rank updates",
            where=str(directory / WEIGHTS_NAME),
            remedy="Give the base model that it was trained on; heads and embeddings that it "
            "trained beside LoRA cannot be read",
        )
    return scale, updates


def write_peft(
    tensors: Mapping[str, Tensor],
    scale: float,
    spec: ModelSpec,
    origin: Mapping[str, Any],
    out: Path,
) -> str:
    """Write low-rank updates as an adapter of PEFT.

    Args:
        tensors: tensors of the adapter, by our names.
        scale: factor of the updates.
        spec: spec of the adapted model.
        origin: origin of the base model, as its directory has it; may be empty.
        out: directory to write, whose parent exists.

    Returns:
        The architecture whose modules the adapter names.

    Raises:
        ModelError: when no architecture has the model as it is, or the adapter trained more than
            low-rank updates.
        RunError: when the directory cannot be written.
    """
    others = [name for name in tensors if not name.endswith((DOWN, UP))]
    if others:
        raise ModelError(
            f"The adapter also holds tensors that are no low-rank updates: {first_names(others)}",
            where="--format peft",
            remedy="Merge it instead: heedful merge BASE ADAPTER OUT",
        )
    architecture, form = fitting_architecture(spec, origin.get("model_type"), where="--format peft")
    if form.spec != spec:
        raise ModelError(
            f"The base model becomes a model of {architecture.model_type} only by changing its "
            "weights, so its updates belong to other matrices",
            where="--format peft",
            remedy="Merge it instead, and export the model: heedful merge BASE ADAPTER OUT",
        )
    table = architecture.table(spec)
    matrices = {name.removesuffix(UP) for name in tensors if name.endswith(UP)}
    written: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    for rule in table.rules:
        if matrices.isdisjoint(ours.removesuffix(".weight") for ours in rule.ours):
            continue
        module = rule.theirs[0].removesuffix(".weight")
        down, up = _joined(rule, tensors, stored_shapes(spec))
        written |= {_PREFIX + module + _A: down, _PREFIX + module + _B: up}
        ranks[module] = len(down)
    config = _config(ranks, scale, spec, origin)

    def write(fresh: Path) -> None:
        write_json_file(fresh / CONFIG_NAME, config)
        save_file(written, str(fresh / WEIGHTS_NAME), metadata={"format": "pt"})

    write_directory(out, write)
    return architecture.model_type


def _config(
    ranks: Mapping[str, int], scale: float, spec: ModelSpec, origin: Mapping[str, Any]
) -> dict[str, Any]:
    usual = Counter(ranks.values()).most_common(1)[0][0]
    others = {module: rank for module, rank in ranks.items() if rank != usual}
    tasks = {"label": "SEQ_CLS", "token_label": "TOKEN_CLS", None: "FEATURE_EXTRACTION"}
    if spec.generates:
        task = "SEQ_2_SEQ_LM" if spec.reads == "pairs" else "CAUSAL_LM"
    else:
        task = tasks.get(spec.predicts, "FEATURE_EXTRACTION")
    return {
        "peft_type": "LORA",
        "task_type": task,
        "base_model_name_or_path": origin.get("repository"),
        "revision": origin.get("commit"),
        "inference_mode": True,
        "r": usual,
        "lora_alpha": scale * usual,
        "rank_pattern": others,
        # The factor is alpha / r, and the same for all.
        "alpha_pattern": {module: scale * rank for module, rank in others.items()},
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(ranks),
    }


def _joined(rule: Rule, tensors: Mapping[str, Tensor], shapes: Shapes) -> tuple[Tensor, Tensor]:
    """Return `down` [R, in] and `up` [out, R] of one of their matrices; R adds up our ranks."""
    names = [ours.removesuffix(".weight") for ours in rule.ours]
    downs = [tensors[name + DOWN] for name in names if name + DOWN in tensors]
    total = sum(map(len, downs))
    ups, start = [], 0
    for name, ours in zip(names, rule.ours, strict=True):
        # Each update has columns of its own, so the sum of products is that of the matrices.
        whole = torch.zeros(shapes[ours][0], total)
        if name + UP in tensors:
            up = tensors[name + UP]
            whole[:, start : start + up.shape[1]] = up
            start += up.shape[1]
        ups.append(whole)
    (joined,) = rule.to_theirs(ups)
    up = joined.T if _is_transposed(rule, shapes) else joined
    return torch.cat(downs).contiguous(), up.contiguous()


def _is_transposed(rule: Rule, shapes: Shapes) -> bool:
    """Return True if their matrix is stored as [in, out]."""
    (probe,) = rule.to_theirs([torch.zeros(shapes[ours][0], 1) for ours in rule.ours])
    return probe.shape[0] == 1


def _rules_by_module(architecture: Architecture[Any], spec: ModelSpec) -> dict[str, Rule]:
    """Return the rules of matrices, by the names of their modules."""
    shapes = stored_shapes(spec)
    return {
        rule.theirs[0].removesuffix(".weight"): rule
        for rule in architecture.table(spec).rules
        if len(rule.theirs) == 1
        if all(ours.endswith(".weight") and len(shapes.get(ours, ())) == 2 for ours in rule.ours)
        if not any("embedding" in ours for ours in rule.ours)
    }


def _without_prefixes(name: str) -> list[str]:
    """Return a name without its first one or two parts, which a class with a head adds."""
    parts = name.split(".")
    return [".".join(parts[1:]), ".".join(parts[2:])]


def _scale(config: Mapping[str, Any], module: str) -> float:
    """Return alpha / r of a module, or without a name that of all others."""
    values = {"rank_pattern": config["r"], "alpha_pattern": config["lora_alpha"]}
    for pattern in values:
        for key, value in (config.get(pattern) or {}).items():
            if module == key or module.endswith(f".{key}"):
                values[pattern] = value
                break
    rank = values["rank_pattern"] ** 0.5 if config.get("use_rslora") else values["rank_pattern"]
    return float(values["alpha_pattern"] / rank)


def _check_settings(config: Mapping[str, Any], where: str) -> None:
    refused = {
        key: value
        for key, value in config.items()
        if key not in (*_READ, *_WITHOUT_EFFECT)
        if value not in (None, False, "none", [], {})
        if key != "init_lora_weights" or value not in _INITIAL
    }
    if config.get("peft_type") != "LORA":
        refused = {"peft_type": config.get("peft_type")}
    if refused:
        shown = ", ".join(f"{key} = {value!r}" for key, value in refused.items())
        raise ModelError(
            f"The adapter has settings that cannot be read: {shown}",
            where=where,
            remedy="Merge it with peft (merge_and_unload, save_pretrained), and import the model",
        )


def _read_files(directory: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = read_json_file(directory / CONFIG_NAME)
    try:
        assert config is not None  # there is such a file, or nobody would have come here
        for key in ("r", "lora_alpha"):
            if not isinstance(config[key], int | float) or config[key] <= 0:
                raise ValueError(f"{key} is {config[key]!r}")
        return config, load_file(str(directory / WEIGHTS_NAME))
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise ModelError(
            f"The adapter cannot be read: {error}",
            where=str(directory),
            remedy=f"It needs {CONFIG_NAME} of LoRA and {WEIGHTS_NAME}; a pickle "
            "(adapter_model.bin) is not read",
        ) from None

"""Low-rank adaptation (LoRA, Hu 2021): the model is frozen, and low-rank updates are trained.

An update is a parametrisation of a matrix, W + alpha/rank · B A, so the model's code does not know
of it, and the validated model is exactly the merged one. Dropout on the input of B A, as in the
original, is left out: with it the sum could not be one matrix.

An adapter's directory holds the trained tensors without the model they belong to. `adapter.json`
has the `schema_version`, the specification of the resulting `model`, the `scale` of the updates,
the SHA-256 of the matrices that they belong to (`base`), and the first new row of each table that
grew (`rows`). `adapter.safetensors` has, by the canonical name of a matrix, NAME.down [r, in] and
NAME.up [out, r]: the matrix becomes NAME + scale · up down; NAME.rows are the new rows of a table;
all other tensors belong to new modules. `tokenizer.json` is there when the vocabulary grew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils import parametrize

from heedful.errors import ConfigError, ModelError, suggest
from heedful.interop.hugging_face import describe_any, read_any_weights
from heedful.models.build import (
    build_around,
    build_model,
    canonical_weights,
    stored_shapes,
)
from heedful.models.checkpoint import save_model, write_directory
from heedful.models.model_spec import ModelSpec, Side, parse_spec
from heedful.models.new_tokens import NewTokens, tables
from heedful.nn.linear_layers import FusedLinear
from heedful.nn.low_rank import LowRank, NewRows
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.train.run_settings import LoraSettings
from heedful.train.splitting import derive_seed

if TYPE_CHECKING:
    from heedful.models.build import AnyModel


# Number of a random stream, separate from that of the model's initial weights.
_STREAM = 7


@dataclass(frozen=True)
class Matrix:
    """A linear map of a model, which may be some rows of a larger matrix.

    Args:
        name: canonical address, such as `encoder.blocks.0.self_attention.query`.
        module: module whose `weight` contains the matrix.
        start: first row of the matrix in `weight`.
        stop: row after its last one.
    """

    name: str
    module: nn.Module
    start: int
    stop: int


def adapt(
    model: nn.Module,
    settings: LoraSettings,
    *,
    new_parts: Sequence[str],
    new_tokens: Mapping[Side, NewTokens],
    seed: int,
) -> None:
    """Freeze a model and add trainable low-rank updates, which are zero at first.

    Args:
        model: model with its initial weights.
        settings: rank, alpha and target matrices.
        new_parts: addresses of newly initialised modules, which are trained in full.
        new_tokens: tokens whose embedding rows are trained, by vocabulary.
        seed: random seed of the run.

    Raises:
        ConfigError: when a target names no matrix of the model.
    """
    chosen = _choose(list(_matrices(model, new_parts)), settings.targets)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(name.startswith(f"{part}.") for part in new_parts))
    # A matrix A gets the same numbers whatever the model drew before.
    torch.manual_seed(derive_seed(seed, _STREAM))
    by_module: dict[int, list[Matrix]] = {}
    for matrix in chosen:
        # Queries, keys and values are rows of one weight: a parametrisation covers all targets in
        # it.
        by_module.setdefault(id(matrix.module), []).append(matrix)
    for group in by_module.values():
        module = group[0].module
        weight = cast(Tensor, module.weight)
        maps = {matrix.name.rpartition(".")[2]: (matrix.start, matrix.stop) for matrix in group}
        change = LowRank(maps, weight.shape[1], settings.rank, settings.alpha / settings.rank)
        parametrize.register_parametrization(module, "weight", change.to(weight.device))
    for name, side in tables(canonical_weights(model)):
        tokens = new_tokens[side]
        path, _, leaf = name.rpartition(".")
        if not tokens.pieces or any(name.startswith(f"{part}.") for part in new_parts):
            continue
        module = model.get_submodule(path)
        # Only rows of new tokens are trained: the table [V, D] itself stays frozen.
        whole = cast(Tensor, getattr(module, leaf))
        rows = whole[tokens.first : tokens.first + len(tokens.pieces)]
        # `unsafe` skips PyTorch's check that the shape stays, which would run the parametrisation
        # once.
        parametrize.register_parametrization(module, leaf, NewRows(rows, tokens.first), unsafe=True)


def merged(model: nn.Module) -> nn.Module:
    """Merge an adapted model into an ordinary one, on the CPU; return others unchanged."""
    if not any(map(parametrize.is_parametrized, model.modules())):
        return model
    # Weights are about to be replaced, so none are allocated or initialised.
    with torch.device("meta"):
        plain = build_model(cast(Any, model).spec)
    own = {}
    for name, tensor in [*plain.named_parameters(), *plain.named_buffers()]:
        path, _, leaf = name.rpartition(".")
        weight = getattr(model.get_submodule(path), leaf).detach()
        own[name] = torch.empty(tensor.shape).copy_(weight)
    # `strict=False`, as computed buffers (positions) have no place in a state dict.
    plain.load_state_dict(own, strict=False, assign=True)
    return plain.train(model.training)


def parameter_counts(model: nn.Module) -> tuple[int, int]:
    """Count the trainable parameters, and all parameters."""
    counts = [(p.numel(), p.requires_grad) for p in model.parameters()]
    return sum(n for n, learns in counts if learns), sum(n for n, _ in counts)


def merged_parameters(model: nn.Module) -> int:
    """Count the parameters of the model after merging."""
    changes = [part for _, _, part, _ in _parametrisations(model) if isinstance(part, LowRank)]
    added = sum(p.numel() for change in changes for p in change.parameters())
    return parameter_counts(model)[1] - added


def _parametrisations(model: nn.Module) -> Iterator[tuple[str, str, nn.Module, Tensor]]:
    """Yield (module address, tensor name, parametrisation, frozen tensor) for each."""
    for path, module in model.named_modules():
        if parametrize.is_parametrized(module):
            for leaf, parts in cast(nn.ModuleDict, module.parametrizations).items():
                for part in cast(nn.ModuleList, parts):
                    yield path, leaf, part, cast(Tensor, parts.original)


def _sibling_address(path: str, name: str) -> str:
    """Return the address of a linear map from the address of the module that contains it."""
    return _child_address(path.rpartition(".")[0], name)


def _child_address(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _matrices(model: nn.Module, new_parts: Sequence[str]) -> Iterator[Matrix]:
    """Yield the linear maps of a model that can get a low-rank update."""
    for path, module in model.named_modules():
        # New modules are trained in full, so a low-rank update of them would be redundant.
        if any(path.startswith(part) for part in new_parts):
            continue
        if isinstance(module, FusedLinear):
            start = 0
            for name, rows in module.out_widths.items():
                yield Matrix(_sibling_address(path, name), module, start, start + rows)
                start += rows
        elif isinstance(module, nn.Linear):
            yield Matrix(path, module, 0, module.out_features)


def _choose(matrices: Sequence[Matrix], targets: Sequence[str]) -> list[Matrix]:
    """Return the matrices that the targets name.

    Raises:
        ConfigError: when a target matches no matrix; it is named.
    """
    chosen: set[str] = set()
    for target in targets:
        meant = {
            matrix.name
            for matrix in matrices
            # "query" means any address that ends in `.query`, as in Hugging Face's PEFT.
            if fnmatchcase(matrix.name, target) or fnmatchcase(matrix.name, f"*.{target}")
        }
        if not meant:
            kinds = {matrix.name.rpartition(".")[2] for matrix in matrices}
            raise ConfigError(
                f"The model has no matrix {target!r}",
                where="lora.targets",
                remedy=suggest(target, kinds),
            )
        chosen |= meant
    return [matrix for matrix in matrices if matrix.name in chosen]


SCHEMA_VERSION = 1
ADAPTER_FILE = "adapter.json"
TENSORS_FILE = "adapter.safetensors"
ADAPTER_DIRECTORY = "adapter"
"""Name of the adapter's folder in a run directory, beside `model`."""

DOWN, UP, ROWS = ".down", ".up", ".rows"
"""Ends of the names of an adapter's tensors, after the canonical name of a matrix or table."""


@dataclass(frozen=True)
class Adapter:
    """The trained tensors of a low-rank run.

    Args:
        spec: specification of the merged model.
        scale: factor alpha / rank of the updates.
        base: fingerprint of the frozen matrices that the updates belong to.
        rows: index of the first new row, by name of each table that grew.
        tensors: trained tensors, named as the module's description says.
        tokenizers: tokenizers with the new tokens; None where the vocabulary did not grow.
    """

    spec: ModelSpec
    scale: float
    base: str
    rows: Mapping[str, int]
    tensors: Mapping[str, Tensor]
    tokenizers: TokenizerPair | None

    @classmethod
    def of(cls, model: nn.Module, tokenizers: TokenizerPair | None) -> Adapter:
        """Extract the adapter from a model in training.

        Args:
            model: adapted model.
            tokenizers: tokenizers with the new tokens; None where the vocabulary did not grow.
        """
        tensors = {
            name: parameter.detach()
            for name, parameter in model.named_parameters()
            # Parameters of new modules; those of parametrisations follow, under canonical names.
            if parameter.requires_grad and ".parametrizations." not in f".{name}"
        }
        matrices: dict[str, Tensor] = {}
        rows: dict[str, int] = {}
        scale = 1.0
        for path, leaf, part, original in _parametrisations(model):
            # Frozen rows identify the base model: the updates mean nothing on top of other weights.
            if isinstance(part, LowRank):
                scale = part.scale
                for key, (start, stop) in part.maps.items():
                    name = _sibling_address(path, key)
                    tensors[name + DOWN] = part.down[key].detach()
                    tensors[name + UP] = part.up[key].detach()
                    matrices[name] = original[start:stop]
            elif isinstance(part, NewRows):
                table = _child_address(path, leaf)
                tensors[table + ROWS] = part.rows.detach()
                rows[table] = part.first
        spec = cast(Any, model).spec
        return cls(spec, scale, fingerprint(matrices), rows, tensors, tokenizers)

    def save(self, directory: Path) -> None:
        """Write or replace the directory atomically.

        Raises:
            RunError: when it cannot be written.
        """
        content = {
            "schema_version": SCHEMA_VERSION,
            "scale": self.scale,
            "base": self.base,
            "rows": dict(self.rows),
            "model": self.spec.plain(),
        }

        def write(fresh: Path) -> None:
            text = json.dumps(content, indent=2, ensure_ascii=False)
            (fresh / ADAPTER_FILE).write_text(text + "\n", encoding="utf-8")
            tensors = {name: t.detach().cpu().contiguous() for name, t in self.tensors.items()}
            save_file(tensors, str(fresh / TENSORS_FILE), metadata={"format": "pt"})
            if self.tokenizers is not None:
                self.tokenizers.save(fresh)

        write_directory(directory, write)

    @classmethod
    def load(cls, path: Path) -> Adapter:
        """Read an adapter from its directory or from a run directory.

        Raises:
            ModelError: when the adapter is missing, damaged or of a newer schema.
        """
        result = (d for d in (path, path / ADAPTER_DIRECTORY) if (d / ADAPTER_FILE).is_file())
        directory = next(result, None)
        if directory is None:
            raise ModelError(
                f"There is no {ADAPTER_FILE}, as there is after training with lora.rank",
                where=str(path),
                remedy="Give the adapter's directory, or its run's",
            )
        try:
            content = json.loads((directory / ADAPTER_FILE).read_text(encoding="utf-8"))
            version = content["schema_version"]
            values = (float(content["scale"]), str(content["base"]), dict(content["rows"]))
            tensors = load_file(str(directory / TENSORS_FILE))
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise ModelError(
                f"The adapter cannot be read: {error}",
                where=str(directory),
                remedy="The files are damaged or not whole; copy them again",
            ) from None
        if version != SCHEMA_VERSION:
            raise ModelError(
                f"The adapter has schema version {version}; this Heedful reads {SCHEMA_VERSION}",
                where=str(directory / ADAPTER_FILE),
                remedy="Install a newer Heedful",
            )
        spec = parse_spec(content["model"], where=str(directory / ADAPTER_FILE))
        grew = (directory / "tokenizer.json").exists()
        pair = TokenizerPair.load(directory) if grew else None
        return cls(spec, *values, tensors, pair)

    def applied(self, weights: Mapping[str, Tensor], *, where: str) -> dict[str, Tensor]:
        """Return the weights of the merged model, in float32.

        Args:
            weights: weights of the base model, under canonical names.
            where: path of the base model, for error messages.

        Raises:
            ModelError: when the adapter was trained on another model.
        """
        changes = [name.removesuffix(UP) for name in self.tensors if name.endswith(UP)]
        matrices = {f"{name}.weight": name for name in changes}
        known = {name: weights[key] for key, name in matrices.items() if key in weights}
        # Only changed matrices are hashed, so a base in another file format passes.
        if len(known) < len(changes) or fingerprint(known) != self.base:
            raise ModelError(
                "The adapter belongs to another model: the matrices that it changes are not those "
                "it was trained with",
                where=where,
                remedy="Give the model that the run began with",
            )
        result = {name: tensor.float() for name, tensor in weights.items()}
        for name, tensor in self.tensors.items():
            try:
                if name.endswith(UP):
                    matrix = name.removesuffix(UP)
                    product = tensor @ self.tensors[matrix + DOWN]
                    # [out, r] × [r, in]; a convolution's weight keeps its own shape by `view_as`.
                    old = result[f"{matrix}.weight"]
                    result[f"{matrix}.weight"] = (old + self.scale * product).view_as(old)
                elif name.endswith(ROWS):
                    table = name.removesuffix(ROWS)
                    first, old = self.rows[table], result[table]
                    result[table] = torch.cat([old[:first], tensor, old[first + len(tensor) :]])
                elif not name.endswith(DOWN):
                    result[name] = tensor
            except (KeyError, RuntimeError) as error:
                raise ModelError(
                    f"The adapter's tensor {name} does not fit: {error}",
                    where=where,
                    remedy="The adapter is damaged; copy it again",
                ) from None
        return result


def merge_into(base: Path, adapter: Path, out: Path) -> AnyModel:
    """Merge an adapter into its base model and write the merged model.

    Args:
        base: a model directory, a run directory or a Hugging Face directory.
        adapter: an adapter's directory, or that of a run.
        out: model directory to write; its parent must exist.

    Returns:
        The merged model.

    Raises:
        ModelError: when one of them is missing or damaged, or they do not belong together.
        RunError: when the directory cannot be written.
    """
    return merge_adapter(base, Adapter.load(adapter), out, where=str(adapter))


def merge_adapter(base: Path, change: Adapter, out: Path, *, where: str) -> AnyModel:
    """Merge an adapter that is read already; see `merge_into`.

    Args:
        base, out: arguments of `merge_into`.
        change: adapter.
        where: path of the adapter, for error messages.
    """
    described = describe_any(base)
    weights = change.applied(read_any_weights(base), where=str(base))
    wanted = stored_shapes(change.spec)  # without heads of the base that the run left out
    weights = {name: tensor for name, tensor in weights.items() if name in wanted}
    model = build_around(change.spec, weights, where=where)
    tokenizers = described.tokenizers if change.tokenizers is None else change.tokenizers
    save_model(model.eval(), tokenizers, out, origin=described.origin)
    return model


def fingerprint(matrices: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of matrices in float32, in the order of their names, in hexadecimal."""
    digest = hashlib.sha256()
    for name in sorted(matrices):
        digest.update(name.encode())
        # Hashed as float32, so that a base stored in bfloat16 has the hash it had in training.
        digest.update(matrices[name].detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()

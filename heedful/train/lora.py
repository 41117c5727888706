"""Low-rank adaptation (LoRA, Hu 2021): the model is frozen, and small changes of it are learned.

A change is a parametrisation of a matrix, W + alpha/rank · B A, so the model's code knows nothing
of it and what is validated is what the merged model computes. There is no dropout within
a change: it acts on the input of B A alone, which then could not be one matrix with W.

An adapter's directory holds what was learned, without the model it belongs to. `adapter.json` has
the `schema_version`, the specification of the `model` that comes out, the `scale` of the changes,
the SHA-256 of the matrices that they belong to (`base`), and the first new row of each table that
grew (`rows`). `adapter.safetensors` has, by the canonical name of a matrix, NAME.down [r, in] and
NAME.up [out, r]: the matrix becomes NAME + scale · up down; NAME.rows are the new rows of a table;
all other tensors belong to new parts. `tokenizer.json` is there when the vocabulary grew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils import parametrize

from heedful.errors import ConfigError, ModelError, suggest
from heedful.interop.hugging_face import describe_any, read_any_weights
from heedful.models.build import build_around, build_model, canonical_weights, stored_shapes
from heedful.models.checkpoint import save_model, write_directory
from heedful.models.model_spec import ModelSpec, Side, parse_spec
from heedful.models.new_tokens import NewTokens, tables
from heedful.nn.linear_layers import FusedLinear
from heedful.nn.low_rank import LowRank, NewRows
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.train.splitting import derive_seed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heedful.models.build import AnyModel
    from heedful.train.run_settings import LoraSettings


_STREAM = 7  # of random numbers, apart from those of the model's first weights


@dataclass(frozen=True)
class Matrix:
    """A linear map of a model, which may be some rows of a larger matrix.

    Args:
        name: its canonical address, such as `encoder.blocks.0.self_attention.query`.
        module: holds the matrix as `weight`.
        start: its first row.
        stop: the row after its last.
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
    """Freeze a model and give it changes to learn, under which it computes what it did.

    Args:
        model: with the weights it begins with.
        settings: rank, factor and which matrices.
        new_parts: addresses of modules that begin anew, which are learned whole.
        new_tokens: tokens whose rows in the tables are learned, by vocabulary.
        seed: of the run.

    Raises:
        ConfigError: when a target is no matrix of the model.
    """
    chosen = _choose(list(_matrices(model, new_parts)), settings.targets)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(name.startswith(f"{part}.") for part in new_parts))
    torch.manual_seed(derive_seed(seed, _STREAM))
    by_module: dict[int, list[Matrix]] = {}
    for matrix in chosen:
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
        whole = cast(Tensor, getattr(module, leaf))
        rows = whole[tokens.first : tokens.first + len(tokens.pieces)]
        parametrize.register_parametrization(module, leaf, NewRows(rows, tokens.first), unsafe=True)


def is_adapted(model: nn.Module) -> bool:
    """True for a model that learns changes of frozen weights."""
    return any(parametrize.is_parametrized(module) for module in model.modules())


def merged(model: nn.Module) -> nn.Module:
    """The ordinary model that an adapted one computes, on the processor; another one is itself."""
    if not is_adapted(model):
        return model
    with torch.device("meta"):
        plain = build_model(cast("AnyModel", model).spec)
    own = {}
    for name, tensor in [*plain.named_parameters(), *plain.named_buffers()]:
        path, _, leaf = name.rpartition(".")
        weight = getattr(model.get_submodule(path), leaf).detach()
        own[name] = torch.empty(tensor.shape).copy_(weight)
    plain.load_state_dict(own, strict=False, assign=True)
    return plain.train(model.training)


def parameter_counts(model: nn.Module) -> tuple[int, int]:
    """The number of trained parameters, and of all parameters."""
    counts = [(p.numel(), p.requires_grad) for p in model.parameters()]
    return sum(n for n, learns in counts if learns), sum(n for n, _ in counts)


def merged_parameters(model: nn.Module) -> int:
    """The number of parameters of the ordinary model, with low-rank changes merged."""
    changes = [part for _, _, part, _ in _parametrisations(model) if isinstance(part, LowRank)]
    added = sum(p.numel() for change in changes for p in change.parameters())
    return parameter_counts(model)[1] - added


def _parametrisations(model: nn.Module) -> Iterator[tuple[str, str, nn.Module, Tensor]]:
    """Address of the module, name of the tensor, parametrisation and frozen tensor, for each."""
    for path, module in model.named_modules():
        if parametrize.is_parametrized(module):
            for leaf, parts in cast(nn.ModuleDict, module.parametrizations).items():
                for part in cast(nn.ModuleList, parts):
                    yield path, leaf, part, cast(Tensor, parts.original)


def _beside(path: str, name: str) -> str:
    """The address of a map, from that of the module that holds it, alone or with others."""
    return _below(path.rpartition(".")[0], name)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _matrices(model: nn.Module, new_parts: Sequence[str]) -> Iterator[Matrix]:
    """The linear maps of a model that may learn a change."""
    for path, module in model.named_modules():
        if any(path.startswith(part) for part in new_parts):
            continue
        if isinstance(module, FusedLinear):
            start = 0
            for name, rows in module.out_widths.items():
                yield Matrix(_beside(path, name), module, start, start + rows)
                start += rows
        elif isinstance(module, nn.Linear):
            yield Matrix(path, module, 0, module.out_features)


def _choose(matrices: Sequence[Matrix], targets: Sequence[str]) -> list[Matrix]:
    """The matrices that a target names.

    Raises:
        ConfigError: naming a target without a matrix.
    """
    chosen: set[str] = set()
    for target in targets:
        meant = {
            matrix.name
            for matrix in matrices
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
"""The folder of a run in which it is kept, beside `model`."""

_DOWN, _UP, _ROWS = ".down", ".up", ".rows"


@dataclass(frozen=True)
class Adapter:
    """The result of a low-rank run.

    Args:
        spec: of the model that comes out.
        scale: factor of the changes.
        base: fingerprint of the matrices that they belong to.
        rows: the first new row of each table that grew.
        tensors: as the module's description says.
        tokenizers: where the vocabulary grew; else None.
    """

    spec: ModelSpec
    scale: float
    base: str
    rows: Mapping[str, int]
    tensors: Mapping[str, Tensor]
    tokenizers: TokenizerPair | None

    @classmethod
    def of(cls, model: nn.Module, tokenizers: TokenizerPair | None) -> Adapter:
        """The adapter of a model in training.

        Args:
            model: in training.
            tokenizers: where the vocabulary grew; else None.
        """
        tensors = {
            name: parameter.detach()
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and ".parametrizations." not in f".{name}"
        }
        matrices: dict[str, Tensor] = {}
        rows: dict[str, int] = {}
        scale = 1.0
        for path, leaf, part, original in _parametrisations(model):
            if isinstance(part, LowRank):
                scale = part.scale
                for key, (start, stop) in part.maps.items():
                    name = _beside(path, key)
                    tensors[name + _DOWN] = part.down[key].detach()
                    tensors[name + _UP] = part.up[key].detach()
                    matrices[name] = original[start:stop]
            elif isinstance(part, NewRows):
                table = _below(path, leaf)
                tensors[table + _ROWS] = part.rows.detach()
                rows[table] = part.first
        spec = cast("AnyModel", model).spec
        return cls(spec, scale, fingerprint(matrices), rows, tensors, tokenizers)

    def save(self, directory: Path) -> None:
        """Write the directory, or replace it, in one step.

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
        """Read an adapter's directory, or that of a run.

        Raises:
            ModelError: when there is none, it is damaged or of a newer schema.
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
        """The weights of the merged model, in float32.

        Args:
            weights: of the model that the adapter belongs to, under canonical names.
            where: that model, for the error message.

        Raises:
            ModelError: when it is another model.
        """
        changes = [name.removesuffix(_UP) for name in self.tensors if name.endswith(_UP)]
        matrices = {f"{name}.weight": name for name in changes}
        known = {name: weights[key] for key, name in matrices.items() if key in weights}
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
                if name.endswith(_UP):
                    matrix = name.removesuffix(_UP)
                    product = tensor @ self.tensors[matrix + _DOWN]
                    old = result[f"{matrix}.weight"]
                    result[f"{matrix}.weight"] = (old + self.scale * product).view_as(old)
                elif name.endswith(_ROWS):
                    table = name.removesuffix(_ROWS)
                    first, old = self.rows[table], result[table]
                    result[table] = torch.cat([old[:first], tensor, old[first + len(tensor) :]])
                elif not name.endswith(_DOWN):
                    result[name] = tensor
            except (KeyError, RuntimeError) as error:
                raise ModelError(
                    f"The adapter's tensor {name} does not fit: {error}",
                    where=where,
                    remedy="The adapter is damaged; copy it again",
                ) from None
        return result


def merge_into(base: Path, adapter: Path, out: Path) -> AnyModel:
    """Merge an adapter into the model it belongs to, and write the ordinary model.

    Args:
        base: a model directory, a run directory or a Hugging Face directory.
        adapter: an adapter's directory, or that of a run.
        out: the model directory to write; its parent must exist.

    Returns:
        The merged model.

    Raises:
        ModelError: when one of them is missing or damaged, or they do not belong together.
        RunError: when the directory cannot be written.
    """
    change = Adapter.load(adapter)
    described = describe_any(base)
    weights = change.applied(read_any_weights(base), where=str(base))
    wanted = stored_shapes(change.spec)  # heads that the run left out are not among them
    weights = {name: tensor for name, tensor in weights.items() if name in wanted}
    model = build_around(change.spec, weights, where=str(adapter))
    tokenizers = described.tokenizers if change.tokenizers is None else change.tokenizers
    save_model(model.eval(), tokenizers, out, origin=described.origin)
    return model


def fingerprint(matrices: Mapping[str, Tensor]) -> str:
    """SHA-256 of matrices in float32, in the order of their names, in hexadecimal."""
    digest = hashlib.sha256()
    for name in sorted(matrices):
        digest.update(name.encode())
        digest.update(matrices[name].detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()

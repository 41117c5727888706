"""Adapter directories: what a low-rank run learned, without the model it belongs to.

`adapter.json` has the `schema_version`, the complete specification of the `model` that comes out,
the `scale` of the changes, and the SHA-256 of the matrices that they belong to (`base`).
`adapter.safetensors` has, by the canonical name of a matrix, NAME.down [r, in] and NAME.up
[out, r]: the matrix becomes NAME + scale · up down. NAME.rows are the rows that a table gets
besides, from the row on that `rows` in adapter.json tells; all other tensors belong to new parts,
whole.
`tokenizer.json` is there when the vocabulary grew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from heedful.errors import ModelError
from heedful.interop.hugging_face import describe_any, read_any_weights
from heedful.models.build import build_around, stored_shapes
from heedful.models.checkpoint import save_model, write_directory
from heedful.models.family import ModelSpec, parse_spec
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.train.lora import factor, first_rows, frozen, learned

if TYPE_CHECKING:
    from heedful.models.build import AnyModel

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
        found = (d for d in (path, path / ADAPTER_DIRECTORY) if (d / ADAPTER_FILE).is_file())
        directory = next(found, None)
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


def adapter_of(model: nn.Module, tokenizers: TokenizerPair | None) -> Adapter:
    """The adapter of a model in training.

    Args:
        model: in training.
        tokenizers: where the vocabulary grew; else None.
    """
    return Adapter(
        spec=cast("AnyModel", model).spec,
        scale=factor(model),
        base=fingerprint(frozen(model)),
        rows=first_rows(model),
        tensors=learned(model),
        tokenizers=tokenizers,
    )


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
    given = Adapter.load(adapter)
    described = describe_any(base)
    weights = given.applied(read_any_weights(base), where=str(base))
    wanted = stored_shapes(given.spec)  # heads that the run left out are not among them
    weights = {name: tensor for name, tensor in weights.items() if name in wanted}
    model = build_around(given.spec, weights, where=str(adapter))
    tokenizers = described.tokenizers if given.tokenizers is None else given.tokenizers
    save_model(model.eval(), tokenizers, out, origin=described.origin)
    return model


def fingerprint(matrices: Mapping[str, Tensor]) -> str:
    """SHA-256 of matrices in float32, in the order of their names, in hexadecimal."""
    digest = hashlib.sha256()
    for name in sorted(matrices):
        digest.update(name.encode())
        digest.update(matrices[name].detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()

"""Checkpoints: the whole state of a run, written atomically, verified before use; averages of them.

`step-NNNNNNNN/` holds `model.safetensors`, `training.safetensors` (optimiser, moving average, what
the last batch hands to the next) and `state.json`, which names size and SHA-256 of the other two. A
directory gets its name only when all of it is on the disk. Old checkpoints that only the average
needs are slimmed to their weights.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from heedful.durable import replace_synced, sync, write_synced
from heedful.errors import DataError, RunError, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from heedful.events import Events
    from heedful.train.run_settings import CheckpointSettings


SCHEMA_VERSION = 1
_MODEL = "model.safetensors"
_TRAINING = "training.safetensors"
_STATE = "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on the disk.

    Args:
        path: its directory.
        step: updates made.
        state: the content of `state.json`.
    """

    path: Path
    step: int
    state: Mapping[str, Any]

    @property
    def resumable(self) -> bool:
        """True if training can go on from it; slimmed ones hold weights only."""
        return bool(self.state["resumable"])

    @property
    def score(self) -> float | None:
        """The score of the validation at this step, larger is better; None without validation."""
        score = self.state.get("score")
        return None if score is None else float(score)

    def check_data(self, fingerprint: str) -> None:
        """Refuse training data other than that of the run.

        Args:
            fingerprint: of the data now.

        Raises:
            DataError: when it differs.
        """
        if self.state["data_fingerprint"] != fingerprint:
            raise DataError(
                "The training files, their weights or the tokenizer are not those the run began "
                "with",
                where=str(self.path.parent.parent / "config.toml"),
                remedy="Restore the files, or start a new run",
            )

    def model(self) -> dict[str, Tensor]:
        """The weights by parameter name."""
        return safetensors.torch.load_file(self.path / _MODEL)

    def training(self) -> dict[str, Tensor]:
        """The optimiser's tensors, the moving average, and what the last batch handed on."""
        return safetensors.torch.load_file(self.path / _TRAINING)


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        directory: RUN/checkpoints.
        settings: how many to keep and for which average.
    """

    def __init__(self, directory: Path, settings: CheckpointSettings) -> None:
        self.directory = directory
        self.settings = settings
        self._writer: ThreadPoolExecutor | None = None
        self._written: Future[None] | None = None

    def open(self) -> None:
        """Make the directory, and remove what a kill left half written, half deleted or undeleted.

        Raises:
            UserError: when nothing can be written there.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            probe = self.directory / ".temporary-probe"
            probe.mkdir(exist_ok=True)
            probe.rmdir()
        except OSError as error:
            raise UserError(
                f"Checkpoints cannot be written: {error.strerror}",
                where=str(self.directory),
                remedy="Make it writable or name another run directory",
            ) from None
        for stray in self.directory.glob(".temporary-*"):
            shutil.rmtree(stray)
        for checkpoint in self.all():
            if not checkpoint.resumable:
                (checkpoint.path / _TRAINING).unlink(missing_ok=True)
        self._prune()

    def save(
        self,
        step: int,
        model: Mapping[str, Tensor],
        training: Mapping[str, Tensor],
        state: Mapping[str, Any],
    ) -> Path:
        """Write a checkpoint, then drop those that are not needed any more.

        In the background, if the settings say so: of copies, one checkpoint at a time.

        Args:
            step: updates made.
            model: weights by parameter name.
            training: everything else that is a tensor.
            state: everything else, plain data.

        Raises:
            RunError: when the disk is full or not writable, for this checkpoint or the one before
                in the background; earlier checkpoints stay whole.
        """
        self.finish()
        path = self.directory / _name(step)
        if not self.settings.background:
            self._save(step, model, training, state)
            return path
        weights, others = _copied(model), _copied(training)
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, "checkpoints")
        self._written = self._writer.submit(self._save, step, weights, others, state)
        return path

    def finish(self) -> None:
        """Wait for what is written in the background.

        Raises:
            RunError: as `save`.
        """
        written, self._written = self._written, None
        if written is not None:
            written.result()

    def _save(
        self,
        step: int,
        model: Mapping[str, Tensor],
        training: Mapping[str, Tensor],
        state: Mapping[str, Any],
    ) -> None:
        final = self.directory / _name(step)
        try:
            temporary = self._temporary("write", step)
            temporary.mkdir()
            files = {}
            for name, tensors in ((_MODEL, model), (_TRAINING, training)):
                packed = {n: t.detach().contiguous().cpu() for n, t in tensors.items()}
                content = safetensors.torch.save(packed)
                write_synced(temporary / name, content)
                sha256 = hashlib.sha256(content).hexdigest()
                files[name] = {"size": len(content), "sha256": sha256}
            whole = {"schema_version": SCHEMA_VERSION, "step": step, "resumable": True}
            write_synced(temporary / _STATE, _json({**whole, **state, "files": files}))
            sync(temporary)
            if final.exists():
                self._delete(final)
            os.replace(temporary, final)
            sync(self.directory)
            self._prune()
        except OSError as error:
            shutil.rmtree(self._temporary("write", step), ignore_errors=True)
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            what = "The disk is full" if full else f"Cannot be written ({error.strerror or error})"
            raise RunError(
                f"{what}; earlier checkpoints are whole",
                where=str(final),
                remedy=("Free some space" if full else "Make the directory writable")
                + ", then use --resume",
            ) from error

    def all(self) -> list[Checkpoint]:
        """Checkpoints whose state can be read, oldest first; their tensors are not verified."""
        results = []
        for path in sorted(self.directory.glob("step-*")):
            try:
                results.append(_read(path))
            except _Damaged:
                continue
        return results

    def newest(self, events: Events) -> Checkpoint | None:
        """The newest checkpoint that is whole and resumable, or None when there never was one.

        Damaged ones are told about, set aside and the one before is tried.

        Raises:
            RunError: when there are checkpoints and none of them is good.
        """
        self.finish()
        paths = sorted(self.directory.glob("step-*"), reverse=True)
        for path in paths:
            try:
                checkpoint = _read(path)
                if not checkpoint.resumable:
                    continue
                verify(checkpoint)
            except _Damaged as problem:
                aside = self._set_aside(path)
                events.warn(
                    f"Checkpoint {path} is damaged ({problem}); it was moved to {aside.name} "
                    "and the one before it is used"
                )
                continue
            return checkpoint
        if paths:
            raise RunError(
                "None of the checkpoints is whole, so the run cannot be resumed",
                where=str(self.directory),
                remedy="Train into a new run directory, or restore a checkpoint from a backup",
            )
        return None

    def window(self) -> list[Checkpoint]:
        """The regular checkpoints that the average is taken over, oldest first."""
        self.finish()
        return self._window()

    def _window(self) -> list[Checkpoint]:
        regular = [c for c in self.all() if c.state.get("regular")]
        count = self.settings.average_count
        if self.settings.average == "last":
            return regular[-count:]
        if self.settings.average == "best":
            scored = [c for c in regular if c.score is not None]
            best = sorted(scored, key=lambda c: (c.score, c.step))[-count:]
            return sorted(best, key=lambda c: c.step)
        return []

    def _prune(self) -> None:
        everything = self.all()
        resumable = {c.step for c in [c for c in everything if c.resumable][-self.settings.keep :]}
        averaged = {c.step for c in self._window()}
        for checkpoint in everything:
            if checkpoint.step in resumable:
                continue
            if checkpoint.step not in averaged:
                self._delete(checkpoint.path)
            elif checkpoint.resumable:
                # the state first: a kill in between leaves a file too many, never a false promise
                state = _json({**checkpoint.state, "resumable": False})
                replace_synced(checkpoint.path / _STATE, state)
                (checkpoint.path / _TRAINING).unlink()

    def _delete(self, path: Path) -> None:
        doomed = self._temporary("delete", int(path.name.removeprefix("step-")))
        os.replace(path, doomed)
        shutil.rmtree(doomed)

    def _set_aside(self, path: Path) -> Path:
        aside = path.with_name(f"damaged-{path.name}")
        shutil.rmtree(aside, ignore_errors=True)
        os.replace(path, aside)
        return aside

    def _temporary(self, purpose: str, step: int) -> Path:
        return self.directory / f".temporary-{purpose}-{_name(step)}"


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}


def verify(checkpoint: Checkpoint) -> None:
    """Compare the files with the sizes and hashes in `state.json`.

    Raises:
        ValueError: saying which file is missing, cut short or changed.
    """
    for name, expected in checkpoint.state["files"].items():
        if name == _TRAINING and not checkpoint.resumable:
            continue
        try:
            with (checkpoint.path / name).open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                size = file.tell()
        except OSError as error:
            raise _Damaged(f"{name}: {error.strerror}") from None
        if size != expected["size"]:
            raise _Damaged(f"{name} has {size} bytes, not {expected['size']}")
        if sha256 != expected["sha256"]:
            raise _Damaged(f"the content of {name} has changed")


def whole_models(checkpoints: Iterable[Checkpoint], events: Events) -> list[Checkpoint]:
    """Those whose weights are whole; the others are told about."""
    good = []
    for checkpoint in checkpoints:
        try:
            verify(checkpoint)
        except ValueError as problem:
            events.warn(f"Checkpoint {checkpoint.path} is damaged ({problem}) and left out")
            continue
        good.append(checkpoint)
    return good


class _Damaged(ValueError):
    """A checkpoint is not as it was written."""


def _read(path: Path) -> Checkpoint:
    try:
        state = json.loads((path / _STATE).read_text(encoding="utf-8"))
    except OSError as error:
        raise _Damaged(f"{_STATE}: {error.strerror}") from None
    except ValueError:
        raise _Damaged(f"{_STATE} is not JSON") from None
    if not isinstance(state, dict) or not {"step", "resumable", "files"} <= state.keys():
        raise _Damaged(f"{_STATE} is incomplete")
    if state.get("schema_version") != SCHEMA_VERSION:
        raise RunError(
            f"The checkpoint has schema version {state.get('schema_version')!r}, "
            f"this program reads {SCHEMA_VERSION}",
            where=str(path),
            remedy="Resume with the version of heedful that wrote it",
        )
    return Checkpoint(path, int(state["step"]), state)


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _json(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()


class MovingAverage:
    """An exponential moving average of the weights, kept in float32.

    The decay grows to its full value as (1 + step) / (10 + step), so that the random weights of the
    start are soon forgotten.

    Args:
        weights: the weights to start from.
        decay: share of the old average kept at each step.
    """

    def __init__(self, weights: Mapping[str, Tensor], decay: float) -> None:
        self.decay = decay
        self.tensors = {name: tensor.detach().clone() for name, tensor in weights.items()}

    def update(self, weights: Mapping[str, Tensor], step: int) -> None:
        """Add the weights after a step (from 1) to the average."""
        decay = min(self.decay, (1 + step) / (10 + step))
        new = [_here(weights[name].detach()) for name in self.tensors]
        torch._foreach_lerp_([_here(each) for each in self.tensors.values()], new, 1 - decay)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore a saved average."""
        for name, tensor in self.tensors.items():
            tensor.copy_(tensors[name])


def _here(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process has; all of it, unless it lies in shards."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and saved buffers by name; tied ones once."""
    # Not by the names in a state dict: making one puts tensors in shards together, all of them.
    buffers = {
        f"{address}.{name}" if address else name: buffer
        for address, module in model.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set
    }
    return {name: tensor.detach() for name, tensor in model.named_parameters()} | buffers


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into a model; the names must match exactly."""
    own = weights_of(model)
    assert own.keys() == weights.keys(), own.keys() ^ weights.keys()
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])


@contextmanager
def using(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """A context in which the model has other weights; leaving it restores its own exactly."""
    own = {name: tensor.clone() for name, tensor in weights_of(model).items()}
    load_weights(model, weights)
    try:
        yield
    finally:
        load_weights(model, own)


def average_checkpoints(checkpoints: Sequence[Checkpoint]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints, summed in float64.

    Tensors that are not floating point come from the last one.
    """
    assert checkpoints
    total: dict[str, Tensor] = {}
    last: dict[str, Tensor] = {}
    for checkpoint in checkpoints:
        last = checkpoint.model()
        for name, tensor in last.items():
            if tensor.is_floating_point():
                wide = tensor.double()
                total[name] = total[name] + wide if name in total else wide
    return {
        name: (total[name] / len(checkpoints)).to(tensor.dtype) if name in total else tensor
        for name, tensor in last.items()
    }

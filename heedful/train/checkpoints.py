"""Checkpoints: the whole state of a run, written atomically, verified before use; averages of them.

`step-NNNNNNNN/` holds `model.safetensors`, `training.safetensors` (optimiser, moving average, what
the last batch hands to the next) and `state.json`, which names size and SHA-256 of the other two.
Where every process writes its own part, folders `model/` and `training/` with files of each process
stand in the place of the two. A directory gets its name only when all of it is on the disk. Old
checkpoints that only the average needs are slimmed to their weights.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Protocol, Self

import safetensors.torch

from heedful.durable import replace_synced, sync, write_synced
from heedful.errors import DataError, RunError, UserError
from heedful.train.parallel.pieces import MODEL_FOLDER, TRAINING_FOLDER

if TYPE_CHECKING:
    from torch import Tensor

    from heedful.events import Events
    from heedful.train.run_settings import CheckpointSettings


SCHEMA_VERSION = 1
SHARDED_VERSION = 2
"""The schema version of a checkpoint whose tensors lie in files of several processes."""

_MODEL = "model.safetensors"
_TRAINING = "training.safetensors"
_STATE = "state.json"
_SUFFIX = ".safetensors"


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

    @property
    def sharded(self) -> bool:
        """True if its tensors lie in files of several processes."""
        return bool(self.state["schema_version"] == SHARDED_VERSION)

    @property
    def model_folder(self) -> Path:
        """The folder of the files with the weights; others may be there too."""
        return self.path / MODEL_FOLDER if self.sharded else self.path

    @property
    def training_folder(self) -> Path:
        """The folder of the files with all other tensors; those with the weights may be, too."""
        return self.path / TRAINING_FOLDER if self.sharded else self.path

    def model(self) -> dict[str, Tensor]:
        """The weights by parameter name."""
        return self._whole(self.model_folder, _MODEL)

    def training(self) -> dict[str, Tensor]:
        """The optimiser's tensors, the moving average, and what the last batch handed on."""
        return self._whole(self.training_folder, _TRAINING)

    def is_here(self) -> bool:
        """Return whether this process sees all of its files; their content is not verified."""
        try:
            sizes = {name: (self.path / name).stat().st_size for name in self.state["files"]}
            state = json.loads((self.path / _STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        files = self.state["files"].items()
        return bool(state == self.state) and sizes == {name: each["size"] for name, each in files}

    def _whole(self, folder: Path, name: str) -> dict[str, Tensor]:
        if not self.sharded:
            return safetensors.torch.load_file(folder / name)
        from heedful.train.parallel.sharded_files import StoredTensors

        return StoredTensors(folder).whole()


class Contents(Protocol):
    """The tensors of a checkpoint to be written.

    Attributes:
        waits_for_others: whether other processes write along, which may be gone.
    """

    waits_for_others: bool

    def copied(self) -> Self:
        """The same with copies, which training does not change."""

    def write(self, folder: Path) -> Mapping[str, Any] | None:
        """Write files and wait until the disk has them.

        Args:
            folder: made if missing.

        Returns:
            Size and SHA-256 of each file; None where another process makes them a checkpoint.

        Raises:
            OSError: when they cannot be written.
        """


@dataclass(frozen=True)
class WholeTensors:
    """Tensors that one process writes alone.

    Args:
        model: weights by parameter name.
        training: everything else that is a tensor.
    """

    model: Mapping[str, Tensor]
    training: Mapping[str, Tensor]

    waits_for_others = False

    def copied(self) -> WholeTensors:
        """See `Contents.copied`."""
        return WholeTensors(_copied(self.model), _copied(self.training))

    def write(self, folder: Path) -> Mapping[str, Any]:
        """See `Contents.write`."""
        folder.mkdir()
        files = {}
        for name, tensors in ((_MODEL, self.model), (_TRAINING, self.training)):
            packed = {n: t.detach().contiguous().cpu() for n, t in tensors.items()}
            content = safetensors.torch.save(packed)
            write_synced(folder / name, content)
            files[name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        return files


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        directory: RUN/checkpoints.
        settings: how many to keep and for which average.
    """

    def __init__(self, directory: Path, settings: CheckpointSettings) -> None:
        self.directory = directory
        self.settings = settings
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
                _slim(checkpoint.path)
        self._prune()

    def at(self, state: Mapping[str, Any]) -> Checkpoint:
        """The checkpoint of a state, of which the files may be on another machine."""
        step = int(state["step"])
        return Checkpoint(self.directory / _name(step), step, state)

    def save(self, step: int, contents: Contents, state: Mapping[str, Any]) -> Path:
        """Write a checkpoint, then drop those that are not needed any more.

        In the background, if the settings say so: of copies, one checkpoint at a time.

        Args:
            step: updates made.
            contents: its tensors.
            state: everything else, plain data.

        Raises:
            RunError: when the disk is full or not writable, for this checkpoint or the one before
                in the background; earlier checkpoints stay whole.
        """
        self.finish()
        path = self.directory / _name(step)
        if not self.settings.background:
            self._save(step, contents, state)
            return path
        copied = contents.copied()
        self._written = _in_thread(
            lambda: self._save(step, copied, state), daemon=contents.waits_for_others
        )
        return path

    def finish(self) -> None:
        """Wait for what is written in the background.

        Raises:
            RunError: as `save`.
        """
        written, self._written = self._written, None
        if written is not None:
            written.result()

    def _save(self, step: int, contents: Contents, state: Mapping[str, Any]) -> None:
        final = self.directory / _name(step)
        try:
            temporary = self._temporary("write", step)
            files = contents.write(temporary)
            if files is None:
                return
            version = SCHEMA_VERSION if _MODEL in files else SHARDED_VERSION
            whole = {"schema_version": version, "step": step, "resumable": True}
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
                _slim(checkpoint.path)

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


def _in_thread(work: Callable[[], None], *, daemon: bool) -> Future[None]:
    """Work in a thread.

    Args:
        work: to do.
        daemon: whether the process may end before, as it must where the work waits for processes
            that do not answer.
    """
    future: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    Thread(target=run, name="checkpoints", daemon=daemon).start()
    return future


def _slim(path: Path) -> None:
    """Remove all tensors of a checkpoint but the weights."""
    (path / _TRAINING).unlink(missing_ok=True)
    shutil.rmtree(path / TRAINING_FOLDER, ignore_errors=True)


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}


def verify(checkpoint: Checkpoint) -> None:
    """Compare the files with the sizes and hashes in `state.json`.

    Raises:
        ValueError: saying which file is missing, cut short or changed, or not of the checkpoint.
    """
    files = checkpoint.state["files"]
    for path in checkpoint.path.glob(f"*/*{_SUFFIX}"):  # all of which would be read
        if (name := path.relative_to(checkpoint.path).as_posix()) not in files:
            raise _Damaged(f"{name} is not of this checkpoint")
    for name, expected in files.items():
        if name.startswith(TRAINING_FOLDER) and not checkpoint.resumable:
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
    if state.get("schema_version") not in (SCHEMA_VERSION, SHARDED_VERSION):
        raise RunError(
            f"The checkpoint has schema version {state.get('schema_version')!r}, "
            f"this program reads {SCHEMA_VERSION} and {SHARDED_VERSION}",
            where=str(path),
            remedy="Resume with the version of heedful that wrote it",
        )
    return Checkpoint(path, int(state["step"]), state)


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _json(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()


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

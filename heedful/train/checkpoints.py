"""Checkpoints: the whole state of a run, written atomically and verified before use.

`step-NNNNNNNN/` holds `model.safetensors`, `training.safetensors` (optimiser, moving average, state
carried from the last batch) and `state.json`, which names size and SHA-256 of the other two.
Where every process writes its own part, the folders `model/` and `training/` hold files of each
process instead. A directory gets its name only when all of it is on the disk. Old checkpoints that
only the average needs are slimmed to their weights.
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
from typing import Any

import safetensors.torch
from torch import Tensor

from heedful.durable import replace_synced, sync, write_synced
from heedful.errors import DataError, RunError, UserError
from heedful.events import Events
from heedful.train.checkpoint_contents import (
    MODEL_FILE,
    MODEL_FOLDER,
    TRAINING_FILE,
    TRAINING_FOLDER,
    Contents,
    StoredTensors,
)
from heedful.train.run_settings import CheckpointSettings

SCHEMA_VERSION = 1
SHARDED_VERSION = 2
"""Schema version of checkpoints written by several processes; older programs must refuse them."""

_STATE = "state.json"
_SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on the disk.

    Args:
        path: directory of the checkpoint.
        step: number of updates made.
        state: the content of `state.json`.
    """

    path: Path
    step: int
    state: Mapping[str, Any]

    @property
    def resumable(self) -> bool:
        """True if training can resume from it; slimmed checkpoints hold weights only."""
        return bool(self.state["resumable"])

    @property
    def score(self) -> float | None:
        """The score of the validation at this step, larger is better; None without validation."""
        score = self.state.get("score")
        return None if score is None else float(score)

    def check_data(self, fingerprint: str) -> None:
        """Refuse training data that differs from the run's.

        Args:
            fingerprint: fingerprint of the present training data.

        Raises:
            DataError: when the fingerprints differ.
        """
        # Content decides, not file names: the order of batches is a function of the examples.
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
        """The folder of the weights' files; without shards the other tensors' file is there too."""
        return self.path / MODEL_FOLDER if self.sharded else self.path

    @property
    def training_folder(self) -> Path:
        """The folder of all other tensors' files; without shards the weights' file is there too."""
        return self.path / TRAINING_FOLDER if self.sharded else self.path

    def model(self) -> dict[str, Tensor]:
        """Return the weights by parameter name."""
        return self._whole(self.model_folder, MODEL_FILE)

    def training(self) -> dict[str, Tensor]:
        """Return the optimiser's tensors, the moving average, and the state of the last batch."""
        return self._whole(self.training_folder, TRAINING_FILE)

    def is_here(self) -> bool:
        """Return True if this process sees all files of it; their content is not verified."""
        try:
            # On another machine a folder of the same name may hold another run, hence the
            # comparison of states.
            sizes = {name: (self.path / name).stat().st_size for name in self.state["files"]}
            state = json.loads((self.path / _STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        files = self.state["files"].items()
        return bool(state == self.state) and sizes == {name: each["size"] for name, each in files}

    def _whole(self, folder: Path, name: str) -> dict[str, Tensor]:
        if self.sharded:
            return StoredTensors(folder).read_all()
        return safetensors.torch.load_file(folder / name)


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        directory: RUN/checkpoints.
        settings: number of checkpoints to keep, and the kind of their average.
    """

    def __init__(self, directory: Path, settings: CheckpointSettings) -> None:
        self.directory = directory
        self.settings = settings
        self._writing: Future[None] | None = None

    def open(self) -> None:
        """Make the directory, and clear away what a killed process left in it.

        Raises:
            UserError: when the directory is not writable.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            # A run that cannot save is refused at once, not after its first thousand updates.
            probe = self.directory / ".temporary-probe"
            probe.mkdir(exist_ok=True)
            probe.rmdir()
        except OSError as error:
            raise UserError(
                f"Checkpoints cannot be written: {error.strerror}",
                where=str(self.directory),
                remedy="Make it writable or name another run directory",
            ) from None
        # Partly written or partly deleted: a complete checkpoint never has such a name.
        for stray in self.directory.glob(".temporary-*"):
            shutil.rmtree(stray)
        for checkpoint in self.all():
            # Marked in `state.json` before its tensors were removed; the removal may be unfinished.
            if not checkpoint.resumable:
                _slim(checkpoint.path)
        self._prune()

    def at(self, state: Mapping[str, Any]) -> Checkpoint:
        """Return the checkpoint that a state describes; its files may be on another machine."""
        step = int(state["step"])
        return Checkpoint(self.directory / _name(step), step, state)

    def save(self, step: int, contents: Contents, state: Mapping[str, Any]) -> Path:
        """Write a checkpoint, then delete those that are no longer needed.

        With `background` a thread writes copies of the tensors, one checkpoint at a time.

        Args:
            step: number of updates made.
            contents: tensors of the checkpoint.
            state: everything else as JSON types.

        Raises:
            RunError: when the disk is full or not writable, for this checkpoint or the one before
                in the background; earlier checkpoints stay whole.
        """
        self.finish()
        path = self.directory / _name(step)
        if not self.settings.background:
            self._save(step, contents, state)
            return path
        # Training changes weights in place while the thread writes.
        copies = contents.copy()
        self._writing = _in_thread(
            lambda: self._save(step, copies, state), daemon=contents.waits_for_others
        )
        return path

    def finish(self) -> None:
        """Wait until the checkpoint in the background is written.

        Raises:
            RunError: see `save`.
        """
        written, self._writing = self._writing, None
        if written is not None:
            written.result()

    def _save(self, step: int, contents: Contents, state: Mapping[str, Any]) -> None:
        final = self.directory / _name(step)
        try:
            temporary = self._temporary("write", step)
            files = contents.write(temporary)
            # Another process completes the checkpoint; a second rename would fail.
            if files is None:
                return
            # `state.json` comes last: it vouches for files that are on the disk already.
            version = SCHEMA_VERSION if MODEL_FILE in files else SHARDED_VERSION
            whole = {"schema_version": version, "step": step, "resumable": True}
            write_synced(temporary / _STATE, _json({**whole, **state, "files": files}))
            sync(temporary)
            # A rolled-back run reaches the same step again, with other weights.
            if final.exists():
                self._delete(final)
            # Atomic within a file system; the directory is synced so that the name survives a power
            # cut.
            os.replace(temporary, final)
            sync(self.directory)
            self._prune()
        except OSError as error:
            # Half a checkpoint would keep a full disk full.
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
        """Return the checkpoints with a readable state, oldest first; tensors are not verified."""
        results = []
        # Steps have eight digits, so names sort as numbers do.
        for path in sorted(self.directory.glob("step-*")):
            try:
                results.append(_read(path))
            except _Damaged:
                continue
        return results

    def newest(self, events: Events) -> Checkpoint | None:
        """Return the newest checkpoint that is whole and resumable, or None where none exists.

        A damaged checkpoint is reported and moved aside, and the one before it is tried.

        Raises:
            RunError: when there are checkpoints and all of them are damaged.
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
                # Moved, not deleted: some of its tensors may still be recoverable.
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
        """Return the checkpoints to be averaged, oldest first."""
        self.finish()
        return self._window()

    def _window(self) -> list[Checkpoint]:
        # Checkpoints made at a stop or by the clock are irregular: an average with them would
        # depend on when a run was interrupted.
        regular = [c for c in self.all() if c.state.get("regular")]
        count = self.settings.average_count
        if self.settings.average == "last":
            return regular[-count:]
        if self.settings.average == "best":
            scored = [c for c in regular if c.score is not None]
            # If scores are equal, the later checkpoint counts as better.
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
                # The state first: a kill in between leaves a file too many, never a checkpoint that
                # claims to be resumable without its tensors.
                state = _json({**checkpoint.state, "resumable": False})
                replace_synced(checkpoint.path / _STATE, state)
                _slim(checkpoint.path)

    def _delete(self, path: Path) -> None:
        # Renamed first: a kill during the deletion must not leave half a checkpoint under its name.
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
    """Run a function in a thread of its own and return its future.

    Args:
        work: function to run.
        daemon: permission for the process to end before the work does; needed if the work may wait
            for processes that do not answer.
    """
    future: Future[None] = Future()

    # No ThreadPoolExecutor, as Python waits for its threads at exit, daemons or not.
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
    """Delete all tensors of a checkpoint except the weights."""
    (path / TRAINING_FILE).unlink(missing_ok=True)
    shutil.rmtree(path / TRAINING_FOLDER, ignore_errors=True)


def verify(checkpoint: Checkpoint) -> None:
    """Compare the files with the sizes and hashes in `state.json`.

    Raises:
        ValueError: when a file is missing, cut short, changed or foreign; it is named.
    """
    files = checkpoint.state["files"]
    # Sharded readers take every safetensors file of a folder, so a foreign file would be
    # read as well.
    for path in checkpoint.path.glob(f"*/*{_SUFFIX}"):
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
    """Return the checkpoints whose weights are whole; warn about the others."""
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
    """A checkpoint differs from what was written."""


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
    """Return the mean of the weights of several checkpoints, summed in float64.

    Tensors that are not floating point come from the last one.
    """
    assert checkpoints
    total: dict[str, Tensor] = {}
    last: dict[str, Tensor] = {}
    for checkpoint in checkpoints:
        last = checkpoint.model()
        for name, tensor in last.items():
            if tensor.is_floating_point():
                # The mean is computed in float64, where it does not depend on the order of a few
                # float32 weights.
                wide = tensor.double()
                total[name] = total[name] + wide if name in total else wide
    return {
        name: (total[name] / len(checkpoints)).to(tensor.dtype) if name in total else tensor
        for name, tensor in last.items()
    }

"""Models of the Hugging Face hub by name: `OWNER/NAME`, `OWNER/NAME@REVISION`, or a legacy `NAME`.

Configuration, safetensors and tokenizer files are fetched by `huggingface_hub` (the extra `hub`)
into the cache of that library, which other programs share. Files that could run code are never
fetched: no pickled weights and no Python.
"""

from __future__ import annotations

import errno
import functools
import re
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.errors import ModelError, RunError, UserError

if TYPE_CHECKING:
    from types import ModuleType

# The hub's rules for names: 1 to 96 characters, no full stop at the end.
_PART = "[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_-])?"
_NAME = re.compile(f"(?P<repository>(?:{_PART}/)?{_PART})(?:@(?P<revision>[A-Za-z0-9][\\w./-]*))?")
_COMMIT = re.compile("[0-9a-f]{40}")
_SNAPSHOTS = "snapshots"

# Shards of weights have five digits, and the library's patterns know no repetition.
_DIGITS = "[0-9]" * 5
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "source.spm",
    "target.spm",
    "target_vocab.json",
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
)
FETCHED = (
    "config.json",
    "modules.json",
    "1_Pooling/config.json",
    "generation_config.json",
    "preprocessor_config.json",
    *_WEIGHTS,
    f"model-{_DIGITS}-of-{_DIGITS}.safetensors",
    *_TOKENIZER,
    "target_tokenizer.json",
    *(f"target_tokenizer/{name}" for name in _TOKENIZER),
)
"""Patterns of the fetched files, all that a model directory needs."""

# Never fetched: the error of a model without safetensors names them.
_OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".ot", ".gguf", ".onnx")
_TAGS = ("ETag", "X-Linked-Etag")
_SECONDS = 10.0  # timeout of a request to the hub
_UNAUTHORIZED, _FORBIDDEN, _TOO_MANY, _SERVER_ERROR = 401, 403, 429, 500
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class HubModelUsed(UserWarning):
    """The commit to which a name of the hub was resolved; a branch may move on."""


@dataclass(frozen=True)
class HubName:
    """The name of a model on the hub.

    Args:
        repository: OWNER/NAME, or NAME of some old models.
        revision: branch, tag or commit; the main branch if None.
    """

    repository: str
    revision: str | None = None

    @classmethod
    def parse(cls, word: str | Path) -> HubName | None:
        """Parse a name; return None for a word that can only be a path."""
        text = word.as_posix() if isinstance(word, Path) else word
        match = _NAME.fullmatch(text)
        # The hub forbids these pairs, and the cache separates owner and name by "--".
        if match is None or any(pair in text for pair in ("..", "--", "//")):
            return None
        return cls(match["repository"], match["revision"])

    def __str__(self) -> str:
        return self.repository if self.revision is None else f"{self.repository}@{self.revision}"

    @property
    def is_commit(self) -> bool:
        """True if the revision is a full commit hash, which never changes."""
        return self.revision is not None and _COMMIT.fullmatch(self.revision) is not None


def source_of(directory: Path) -> dict[str, str]:
    """Return `repository` and `commit` of a directory in the hub's cache; empty for others.

    Args:
        directory: directory of a model.
    """
    # The cache's layout: models--OWNER--NAME/snapshots/COMMIT.
    folder, snapshots, commit = ("", "", "", *directory.parts)[-3:]
    kind, *names = folder.split("--")
    if kind != "models" or snapshots != _SNAPSHOTS or _COMMIT.fullmatch(commit) is None:
        return {}
    return {"repository": "/".join(names), "commit": commit}


def commits_used(words: Iterable[object]) -> dict[str, str]:
    """Return the commit of each word that names a model in the hub's cache.

    Args:
        words: settings of a command after it has loaded its models.
    """
    if "huggingface_hub" not in sys.modules:  # then nothing was fetched
        return {}
    from huggingface_hub import constants

    commits: dict[str, str] = {}
    for word in words:
        name = HubName.parse(word) if isinstance(word, str) else None
        # An existing path wins over a name, as in `directory_of`.
        if name is None or Path(str(word)).exists():
            continue
        folder = Path(constants.HF_HUB_CACHE) / f"models--{name.repository.replace('/', '--')}"
        if name.is_commit and (folder / _SNAPSHOTS / str(name.revision)).is_dir():
            commits[str(name)] = str(name.revision)
            continue
        with suppress(OSError, UnicodeDecodeError):
            commits[str(name)] = (folder / "refs" / (name.revision or "main")).read_text().strip()
    return commits


@functools.lru_cache(maxsize=64)  # a process that loads a model twice gets the same commit
def fetch(name: HubName, path_remedy: str = "Check the name") -> Path:
    """Fetch a model of the hub into the cache of `huggingface_hub`, and return its directory.

    A commit in the cache is used without a request to the hub. If the hub cannot be reached, the
    cached copy of a branch or tag is used, with a warning.

    Args:
        name: name of the model.
        path_remedy: remedy in error messages for a mistyped path.

    Raises:
        ModelError: when the model or revision does not exist, is not accessible, or has no
            safetensors; when the hub cannot be reached, and the cache has no copy; when
            `huggingface_hub` is not installed.
        RunError: when the files are incomplete, or cannot be stored.
    """
    library = _library(name, path_remedy)
    if name.is_commit:
        # A missing or broken copy is no error yet: the hub may have a complete one.
        with suppress(OSError, ValueError, _Incomplete, _Outside):
            return _snapshot(library, name, from_cache=True)
    try:
        files = _files(library, name)
    except Exception as error:
        if _is_unreachable(error):
            return _from_cache(library, name, error, path_remedy)
        raise _explained(error, name, path_remedy) from error
    # Checked before anything is fetched, as the names of the files are enough.
    _check_weights(files, name)
    try:
        with _checked_tags(library):
            directory = _snapshot(library, name, from_cache=False)
    except Exception as error:
        raise _explained(error, name, path_remedy) from error
    if not name.is_commit:
        warnings.warn(
            f"{name} is commit {directory.name} of {_address()}; write "
            f"{name.repository}@{directory.name} to stay with it",
            HubModelUsed,
            stacklevel=1,
        )
    return directory


def _library(name: HubName, path_remedy: str) -> ModuleType:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError:
        raise ModelError(
            "No such model directory here; models of the hub need huggingface_hub",
            where=str(name),
            remedy=f"{path_remedy}, or install it with: pip install 'heedful[hub]'",
        ) from None
    return huggingface_hub


def _files(library: ModuleType, name: HubName) -> Collection[str]:
    """Request the names of a model's files from the hub."""
    info = library.HfApi().model_info(name.repository, revision=name.revision, timeout=_SECONDS)
    # Another server than the hub may send no commit; a branch name would not be reproducible.
    if info.sha is None or _COMMIT.fullmatch(info.sha) is None:
        raise ValueError(f"the hub names no commit: {info.sha!r}"[:200])
    return [file.rfilename for file in info.siblings or ()]


class _Outside(Exception):
    """A file outside the cache."""


class _Incomplete(Exception):
    """A directory of the cache that lacks its weights."""


def _snapshot(library: ModuleType, name: HubName, *, from_cache: bool) -> Path:
    """Fetch the files of a model, or find them in the cache; return their directory."""
    directory = Path(
        library.snapshot_download(
            name.repository,
            revision=name.revision,
            allow_patterns=list(FETCHED),
            local_files_only=from_cache,
            etag_timeout=_SECONDS,
            tqdm_class=_progress_bar(library),
            library_name="heedful",
        )
    )
    if not source_of(directory):
        raise ValueError(f"the hub names no commit: {directory.name!r}"[:200])
    folder = directory.parents[2].resolve()  # the cache; files of a snapshot are links into it
    # A link out of the cache would make loading read any file of this machine.
    for file in directory.rglob("*"):
        if not file.resolve().is_relative_to(folder):
            raise _Outside(f"{file.name} leads to {file.resolve()}")
    if from_cache and not any((directory / file).exists() for file in _WEIGHTS):
        raise _Incomplete
    return directory


@contextmanager
def _checked_tags(library: ModuleType) -> Iterator[None]:
    """A context in which servers that name a file outside the cache are refused.

    The library (2.4) stores a file under the server's tag as its name, even if that is a path that
    leads out of the cache.
    """

    def check(response: Any) -> None:
        for header in _TAGS:
            tag = response.headers.get(header, "")
            if "/" in tag.removeprefix("W/") or "\\" in tag or ".." in tag:
                raise _Outside(f"the server names a file {tag[:100]}")

    session = library.get_session()
    before = session.event_hooks
    session.event_hooks = {**before, "response": [*before["response"], check]}
    try:
        yield
    finally:
        session.event_hooks = before


def _progress_bar(library: ModuleType) -> type[Any]:
    """Return the library's progress bar, shown on terminals only."""

    class Bar(library.utils.tqdm):  # type: ignore[name-defined,misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            # Logs of batch jobs would fill with the frames of bars.
            options |= {"disable": not sys.stderr.isatty(), "leave": False}
            super().__init__(*args, **options)

    return Bar


def _from_cache(library: ModuleType, name: HubName, reason: Exception, path_remedy: str) -> Path:
    """Return the cached copy of a model when the hub cannot be reached."""
    try:
        directory = _snapshot(library, name, from_cache=True)
    except (library.errors.LocalEntryNotFoundError, _Incomplete):
        raise ModelError(
            f"No such model directory here, nor a whole copy in the hub's cache. {_reason(reason)}",
            where=str(name),
            remedy=f"{path_remedy}; a model of the hub must be fetched once with a connection "
            "(without HF_HUB_OFFLINE, and HF_ENDPOINT if set must be right)",
        ) from reason
    except Exception as error:
        raise _explained(error, name, path_remedy) from error
    if not name.is_commit:
        warnings.warn(
            f"{_reason(reason)}: {name} is commit {directory.name}, which is in the cache",
            HubModelUsed,
            stacklevel=1,
        )
    return directory


def _check_weights(files: Collection[str], name: HubName) -> None:
    """Refuse a model without safetensors.

    Raises:
        ModelError: when there are no safetensors, with the names of other weights.
    """
    if any(file in files for file in _WEIGHTS):
        return
    where = str(name)
    others = sorted(file for file in files if file.endswith(_OTHER_WEIGHTS))
    if others:
        raise ModelError(
            f"It has no model.safetensors; its weights are {', '.join(others[:4])}. Pickles can "
            "run any program when they are opened, so only safetensors are fetched",
            where=where,
            remedy="Take a revision or a model with safetensors: the hub often offers a converted "
            f"one as a pull request, {name.repository}@refs/pr/NUMBER. Or convert the weights "
            "where you trust them, and give the directory",
        )
    raise ModelError(
        "It has no model.safetensors, nor other weights",
        where=where,
        remedy=f"Look at its files: {_page(name)}/tree/{name.revision or 'main'}",
    )


def _explained(error: Exception, name: HubName, path_remedy: str) -> UserError:
    """Convert an error of the library to a `UserError`."""
    from huggingface_hub import errors

    where = str(name)
    if isinstance(error, _Outside):
        return ModelError(
            f"It has a file outside the hub's cache: {error}",
            where=where,
            remedy=f"Do not use this model, nor {_address()} if it is no server you trust",
        )
    log_in = "log in with `hf auth login`, or set HF_TOKEN"
    # Tested before unknown repositories, as the library's error is a subclass of theirs.
    if isinstance(error, errors.GatedRepoError):
        return ModelError(
            "Its owner gives this model only to people who accept conditions",
            where=where,
            remedy=f"Accept them at {_page(name)}, then {log_in}",
        )
    if _is_unknown(error):
        return ModelError(
            "No such model directory here, and no model of this name on the hub that is open to "
            "you",
            where=where,
            remedy=f"{path_remedy}, or the name at {_address()}; for a private model, {log_in}",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return ModelError(
            f"The model has no branch, tag or commit {name.revision}",
            where=where,
            remedy=f"Choose one at {_page(name)}/commits/main, or leave out @{name.revision}",
        )
    if isinstance(error, errors.HfHubHTTPError) and not _is_unreachable(error):
        return _refused(error, error.response.status_code, name)
    return _not_stored(error, name)


def _is_unknown(error: Exception) -> bool:
    """Return True if the hub has no such model, or hides it from this user."""
    from huggingface_hub import errors

    # Without a login the hub answers 401 for a model that does not exist or is private.
    if isinstance(error, errors.HfHubHTTPError) and error.response.status_code == _UNAUTHORIZED:
        # A wrong token gets 401, too, and only this header tells the two apart.
        return "Invalid credentials" not in error.response.headers.get("X-Error-Message", "")
    return isinstance(error, errors.RepositoryNotFoundError | errors.HFValidationError)


def _refused(error: Exception, status: int, name: HubName) -> UserError:
    """Make the error for an unusual HTTP status of the hub."""
    where = str(name)
    if status in (_UNAUTHORIZED, _FORBIDDEN):
        return ModelError(
            f"The hub refuses access ({status})",
            where=where,
            remedy="Renew the token (`hf auth login`, or HF_TOKEN), or leave it out: HF_TOKEN=''",
        )
    return RunError(
        f"The hub answers with an error: {_line(error)}",
        where=where,
        remedy=f"Look at {_page(name)}",
    )


def _not_stored(error: Exception, name: HubName) -> UserError:
    """Make the error for files that are incomplete or cannot be written."""
    from huggingface_hub import constants

    # Compared by number, as the text of an error depends on the system's language.
    if isinstance(error, OSError) and error.errno in _NO_SPACE:
        return RunError(
            f"There is no room for {name}: {error.strerror}",
            where=constants.HF_HUB_CACHE,
            remedy="Free some space, or set HF_HUB_CACHE to another folder",
        )
    if isinstance(error, OSError) and error.errno is not None:
        return RunError(
            f"{name} cannot be stored: {error.strerror}",
            where=str(error.filename or constants.HF_HUB_CACHE),
            remedy="Mend that, or set HF_HUB_CACHE to another folder",
        )
    return RunError(
        f"The model did not come whole: {_line(error)}",
        where=str(name),
        remedy="Try again, files that have come are kept; if it fails again, delete the model's "
        f"folder in {constants.HF_HUB_CACHE}",
    )


def _reason(error: Exception) -> str:
    """Return a sentence about the reason why the hub was not reached."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return "The hub was not asked, as HF_HUB_OFFLINE is set"
    return f"{_address()} cannot be reached ({_line(error)})"


def _is_unreachable(error: Exception) -> bool:
    """Return True for errors of the network, and for a hub that is overloaded or broken."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    # Statuses of overload count as unreachable, so that a cached copy is used.
    if isinstance(status, int):
        return status == _TOO_MANY or status >= _SERVER_ERROR
    # The library passes on errors of its HTTP client, whichever version of httpx that is.
    library = type(error).__module__.partition(".")[0]
    return library in ("httpx", "httpx2") or isinstance(error, ConnectionError | TimeoutError)


def _page(name: HubName) -> str:
    return f"{_address()}/{name.repository}"


def _address() -> str:
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def _line(error: Exception) -> str:
    """Return the text of an error on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]} …"

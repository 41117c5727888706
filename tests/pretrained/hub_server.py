"""A hub for tests: the part of its interface that fetches models, and its ways to fail."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

API = "/api/models/"


def commit_of(revision: str) -> str:
    """A commit for a name of one: 40 hexadecimal digits."""
    return hashlib.sha1(revision.encode()).hexdigest()


@dataclass
class Repository:
    """A model on the hub.

    Args:
        files: contents by name, by commit.
        refs: commits by branch or tag.
        error: status and `X-Error-Code` of every answer, if any.
        cut: file whose answer ends after half of its bytes.
        swapped: file whose bytes are others than its digest says.
        tag_of_file: a tag in place of the digest, by file.
    """

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    error: tuple[int, str] | None = None
    cut: str = ""
    swapped: str = ""
    tag_of_file: dict[str, str] = field(default_factory=dict)

    def push(self, files: dict[str, bytes], *refs: str) -> str:
        """Add a commit; branches and tags that name it."""
        names = sorted(files)
        commit = commit_of("".join(names) + str(len(self.files)))
        self.files[commit] = files
        self.refs |= dict.fromkeys(refs or ("main",), commit)
        return commit


class Hub(ThreadingHTTPServer):
    """A server of repositories on this machine."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, Repository] = {}
        self.requests: list[str] = []
        self.seconds = 0.0
        self.thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, name: str, directory: Path | None = None, **faults: Any) -> Repository:
        """Add a repository, with the files of a directory on its main branch."""
        repository = self.repositories[name] = Repository(**faults)
        if directory is not None:
            repository.push(contents(directory))
        return repository

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self.thread.join()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay silent: clients that are stopped leave in the middle."""


def contents(directory: Path) -> dict[str, bytes]:
    """All files below a directory by their names."""
    return {
        file.relative_to(directory).as_posix(): file.read_bytes()
        for file in sorted(directory.rglob("*"))
        if file.is_file()
    }


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *words: Any) -> None:
        """Print nothing."""

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {path}")
        time.sleep(self.server.seconds)
        is_api = path.startswith(API)
        words = path.removeprefix(API).strip("/").split("/")
        verbs = ("revision", "tree") if is_api else ("resolve",)
        at = next((i for i, word in enumerate(words) if word in verbs), len(words))
        repository = self.server.repositories.get("/".join(words[:at]))
        if repository is None:
            self.fail(401, "")  # what the hub says to people without a token
        elif repository.error is not None:
            self.fail(*repository.error)
        elif is_api:
            self.describe(repository, words[at : at + 1], "/".join(words[at + 1 :]) or "main")
        else:
            self.send_file(repository, words[at + 1], "/".join(words[at + 2 :]))

    def describe(self, repository: Repository, verb: list[str], revision: str) -> None:
        commit = repository.refs.get(revision, revision)
        files = repository.files.get(commit)
        if files is None:
            self.fail(404, "RevisionNotFound")
        elif verb == ["tree"]:
            entries = [
                {"type": "file", "path": n, "size": len(c), "oid": digest(n, c), **large(n, c)}
                for n, c in files.items()
            ]
            self.send(json.dumps(entries).encode())
        else:
            siblings = [{"rfilename": name} for name in files]
            answer = {"id": "x/y", "sha": commit, "siblings": siblings, "tags": []}
            self.send(json.dumps(answer).encode())

    def send_file(self, repository: Repository, commit: str, name: str) -> None:
        content = repository.files.get(commit, {}).get(name)
        if content is None:
            self.fail(404, "EntryNotFound")
            return
        tag = repository.tag_of_file.get(name, digest(name, content))
        if repository.swapped == name:
            content = content[:-1] + bytes([content[-1] ^ 1])
        headers = {"X-Repo-Commit": commit, "ETag": f'"{tag}"'}
        self.send(content, headers, half=repository.cut == name)

    def send(self, content: bytes, headers: Any = None, *, half: bool = False) -> None:
        self.send_response(200)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[: len(content) // 2] if half else content)
        if half:
            self.close_connection = True

    def fail(self, status: int, code: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


def digest(name: str, content: bytes) -> str:
    """The digest of a file: SHA-256 of large ones, git's of others."""
    if name.endswith(".safetensors"):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def large(name: str, content: bytes) -> dict[str, Any]:
    """What the hub says beside about a large file."""
    if not name.endswith(".safetensors"):
        return {}
    return {"lfs": {"oid": digest(name, content), "size": len(content), "pointerSize": 134}}

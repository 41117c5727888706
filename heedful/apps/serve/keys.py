"""API keys from a file, which stores only their hashes.

A line of the file is `NAME SHA256`, with the hash of the key in hexadecimal digits, optionally
followed by an individual allowance per minute: `requests=600 characters=1000000`. Empty lines and
lines that begin with # are ignored. A key is a long random string, so a fast hash is as safe as a
slow one, and a check takes microseconds.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from heedful.apps.serve.server_settings import Allowance
from heedful.errors import ConfigError

_LINE = re.compile(
    r"(\S+)\s+([0-9a-fA-F]{64})(?:\s+requests=([1-9]\d*))?(?:\s+characters=([1-9]\d*))?"
)


@dataclass(frozen=True)
class Keys:
    """The keys that a server knows.

    Args:
        hashes: SHA-256 of each key, in lower hexadecimal digits, by the name of its owner.
        allowances: individual allowances, by the name of the owner.
    """

    hashes: Mapping[str, str]
    allowances: Mapping[str, Allowance] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Keys:
        """Read a file of keys.

        Raises:
            ConfigError: when the file cannot be read or others may write to it, a line is no name
                and hash, a name occurs twice, or there is no key.
        """
        try:
            mode = path.stat().st_mode
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"The file of keys cannot be read: {error}", where=str(path)
            ) from None
        if os.name == "posix" and mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ConfigError(
                "Other users may write to the file of keys, and so let themselves in",
                where=str(path),
                remedy=f"Make it writable for its owner alone: chmod go-w {path}",
            )
        hashes: dict[str, str] = {}
        allowances: dict[str, Allowance] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            match = _LINE.fullmatch(line)
            if match is None or match[1] in hashes:
                raise ConfigError(
                    "A name occurs twice"
                    if match
                    else "A line is not a name, a hash and an allowance",
                    where=f"{path}, line {number}",
                    remedy="Make a line with: heedful serve --new-key NAME",
                )
            hashes[match[1]] = match[2].lower()
            numbers = [None if number is None else int(number) for number in match.groups()[2:]]
            allowances[match[1]] = Allowance(*numbers)
        if not hashes:
            raise ConfigError(
                "There is no key in the file",
                where=str(path),
                remedy="Make one with: heedful serve --new-key NAME",
            )
        return cls(hashes, allowances)

    def owner(self, key: str | None) -> str | None:
        """Return the name of a key's owner; None for an unknown key."""
        digest = key_hash(key or "")
        # All hashes are compared, so that the time reveals nothing about the key.
        owners = [name for name, own in self.hashes.items() if hmac.compare_digest(own, digest)]
        return owners[0] if owners else None


def key_hash(key: str) -> str:
    """Return the hash of a key as it stands in a file of keys."""
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def add_key(path: Path, name: str, key: str) -> None:
    """Append a key to a file of keys, which is created readable by its owner only.

    Args:
        path: path of the file.
        name: name of the key's owner.
        key: key to add.

    Raises:
        ConfigError: when the name has white space or exists already, or when the file is invalid or
            cannot be written.
    """
    if not re.fullmatch(r"[^\s#]\S*", name):
        raise ConfigError("The name of a key cannot contain white space", where=repr(name))
    if path.exists() and path.stat().st_size and name in Keys.read(path).hashes:
        raise ConfigError(
            f"There is a key of {name} already",
            where=str(path),
            remedy="Delete its line first",
        )
    try:
        with open(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "ab+") as stream:
            # An editor may have left the last line without a line break.
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - 1))
            begin = "" if stream.read() in (b"", b"\n") else "\n"
            stream.write(f"{begin}{name} {key_hash(key)}\n".encode())
    except OSError as error:
        raise ConfigError(
            f"The file of keys cannot be written: {error.strerror}", where=str(path)
        ) from None

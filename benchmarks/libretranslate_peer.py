"""LibreTranslate with a model of ours, for benchmarks/serving.py: its own server, unchanged.

    PYTHON libretranslate_peer.py EXPORTED PORT SOURCE TARGET

PYTHON has libretranslate and tokenizers; EXPORTED is from `heedful export --format ctranslate2`.
Argos Translate, which LibreTranslate computes with, reads SentencePiece's models and fetches models
that split sentences. Ours have tokenizers of another kind, and texts here are sentences already, so
both are exchanged for what costs less: the tokenizers library, and no splitting.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any


def main() -> None:
    """Lay the model out as packages of Argos, and start LibreTranslate."""
    exported, port, source, target = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # With fewer than two packages it would try to fetch some.
        for pair in ((source, target), (target, source)):
            _lay_out(folder / "packages" / "_".join(pair), Path(exported).resolve(), *pair)
        cores = len(os.sched_getaffinity(0))
        os.environ |= {
            "ARGOS_PACKAGES_DIR": str(folder / "packages"),
            "ARGOS_CHUNK_TYPE": "MINISBD",
            "ARGOS_INTER_THREADS": str(cores),
            "ARGOS_INTRA_THREADS": "1",
            "XDG_DATA_HOME": str(folder / "data"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "XDG_CONFIG_HOME": str(folder / "config"),
        }
        os.chdir(folder)  # it writes databases where it stands
        _exchange(Path(exported).resolve())
        from libretranslate.main import main as serve

        sys.argv = ["libretranslate", "--host", "127.0.0.1", "--port", port]
        sys.argv += ["--load-only", f"{source},{target}"]
        serve()


def _lay_out(place: Path, exported: Path, source: str, target: str) -> None:
    place.mkdir(parents=True)
    (place / "model").symlink_to(exported)
    (place / "sentencepiece.model").touch()
    facts = {"package_version": "1.0", "argos_version": "1.9"}
    facts |= {"from_code": source, "from_name": source, "to_code": target, "to_name": target}
    (place / "metadata.json").write_text(json.dumps(facts))


def _exchange(exported: Path) -> None:
    """Tokenize by the exported files, and take texts as sentences."""
    import argostranslate.package
    import argostranslate.sbd
    import tokenizers

    own = tokenizers.Tokenizer.from_file(str(exported / "tokenizer.json"))
    other = exported / "target_tokenizer" / "tokenizer.json"
    target = tokenizers.Tokenizer.from_file(str(other)) if other.exists() else own

    class Tokenizer:
        def __init__(self, model_file: Path) -> None:
            pass

        def encode(self, sentence: str) -> list[str]:
            return list(own.encode(sentence).tokens)

        def decode(self, tokens: list[str]) -> str:
            ids = [target.token_to_id(token) for token in tokens]
            return str(target.decode([i for i in ids if i is not None]))

    def split_sentences(self: Any, text: str) -> list[str]:
        return [text]

    argostranslate.package.SentencePieceTokenizer = Tokenizer
    argostranslate.sbd.MiniSBDSentencizer.split_sentences = split_sentences


if __name__ == "__main__":
    main()

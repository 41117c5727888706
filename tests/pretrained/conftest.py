"""A hub on this machine with small models, and commands that ask it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tokenizers
import torch

from heedful.interop.sentencepiece_files import Piece, SentencePieceModel, write_sentencepiece

from .hub_server import Hub

PACKAGE = Path(__file__).parents[2]
MARIAN = "Helsinki-NLP/opus-mt-en-de"

Run = Callable[..., subprocess.CompletedProcess[str]]


WORDS = ("a", "dog", "runs", "cat", "the", "on", "mat", "sat", ".", "ein", "hund", "katze")


@pytest.fixture(scope="session")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Marian of random weights, with SentencePiece files, as `transformers` writes it."""
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    out = tmp_path_factory.mktemp("theirs") / "marian"
    names = ["</s>", "<unk>", *(f"\N{LOWER ONE EIGHTH BLOCK}{word}" for word in WORDS), "<pad>"]
    config = MarianConfig(
        vocab_size=len(names),
        d_model=16,
        max_position_embeddings=40,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        pad_token_id=len(names) - 1,
        eos_token_id=0,
        decoder_start_token_id=len(names) - 1,
        forced_eos_token_id=None,
    )
    model = MarianMTModel(config)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(torch.randn(tensor.shape), alpha=0.3)
    model.save_pretrained(out)
    special = [Piece("<unk>", 0.0, 2), Piece("</s>", 0.0, 3)]
    pieces = (*special, *(Piece(name, -float(i)) for i, name in enumerate(names[2:-1])))
    for side in ("source", "target"):
        file = SentencePieceModel(pieces, "unigram", unk=0, bos=-1, eos=1)
        (out / f"{side}.spm").write_bytes(write_sentencepiece(file))
    (out / "vocab.json").write_text(json.dumps({name: id for id, name in enumerate(names)}))
    return out


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT of random weights, as `transformers` writes it."""
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    out = tmp_path_factory.mktemp("theirs") / "bert"
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    config = BertConfig(
        vocab_size=len(names),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=64,
    )
    BertForMaskedLM(config).save_pretrained(out)
    (out / "vocab.txt").write_text("\n".join(names) + "\n")
    return out


@pytest.fixture(scope="session")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small T5 of random weights, as `transformers` writes it."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    out = tmp_path_factory.mktemp("theirs") / "t5"
    library = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(
            {name: id for id, name in enumerate(["<pad>", "</s>", "<unk>", *WORDS])}, "<unk>"
        )
    )
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    library.add_special_tokens(["<pad>", "</s>", "<unk>"])
    library.post_processor = tokenizers.processors.TemplateProcessing(
        "$A </s>", "$A </s> $B </s>", [("</s>", 1)]
    )
    config = T5Config(
        vocab_size=library.get_vocab_size(),
        d_model=16,
        d_kv=8,
        d_ff=24,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
    )
    T5ForConditionalGeneration(config).save_pretrained(out)
    library.save(str(out / "tokenizer.json"))
    return out


@pytest.fixture
def hub(marian: Path) -> Iterator[Hub]:
    server = Hub()
    server.add(MARIAN, marian)
    yield server
    server.close()


@pytest.fixture
def run(hub: Hub, tmp_path: Path) -> Run:
    """Run a command in a process and a folder of its own; it knows no hub but this one."""
    folder = tmp_path / "here"
    folder.mkdir()

    def run(
        *words: str,
        input: str = "",
        preparation: Callable[[], None] | None = None,
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        names = ("PATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS")
        environment = {name: os.environ[name] for name in names if name in os.environ}
        environment |= {
            "HOME": str(tmp_path),
            "HF_HOME": str(tmp_path / "hf"),
            "HF_ENDPOINT": hub.address,
            "HF_HUB_DISABLE_XET": "1",
            "PYTHONPATH": str(PACKAGE),
            **variables,
        }
        return subprocess.run(
            [sys.executable, "-m", "heedful", *words],
            cwd=folder,
            env=environment,
            input=input,
            capture_output=True,
            text=True,
            timeout=120,
            preexec_fn=preparation,
            check=False,
        )

    return run

"""Toy models of `transformers`, trained further by the command line and handed back."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from heedful.cli.main import main
from heedful.interop.hugging_face import read_any_weights
from heedful.interop.model_loading import load_any
from heedful.interop.sentencepiece_files import (
    CONTROL,
    UNKNOWN,
    Piece,
    SentencePieceModel,
    write_sentencepiece,
)

WORDS = ["the", "cat", "sat", "on", "mat"]
NEW = "<new>"
SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}


def text(seed: int) -> str:
    draw = random.Random(seed)
    return " ".join([*draw.choices(WORDS, k=5), NEW])


def bert(folder: Path) -> Any:
    import transformers

    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "n", "##e", "##w", "<", ">"]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    config = transformers.BertConfig(
        vocab_size=len(pieces), intermediate_size=40, max_position_embeddings=16, **SIZES
    )
    return transformers.BertForPreTraining(config)


def gpt2(folder: Path) -> Any:
    import transformers

    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<|endoftext|>"]
    library = Tokenizer(models.BPE({name: id for id, name in enumerate(names)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<|endoftext|>"])
    library.save(str(folder / "tokenizer.json"))
    config = transformers.GPT2Config(
        vocab_size=260, n_embd=16, n_layer=2, n_head=2, n_positions=16, eos_token_id=256
    )
    return transformers.GPT2LMHeadModel(config)


def marian(folder: Path) -> Any:
    import transformers

    special = [Piece("<unk>", 0.0, UNKNOWN), Piece("</s>", 0.0, CONTROL)]
    pieces = [*(f"\u2581{word}" for word in WORDS), "\u2581", "<", ">", "n", "e", "w"]
    scored = tuple(Piece(piece, -float(i)) for i, piece in enumerate(pieces, start=1))
    model = SentencePieceModel((*special, *scored), unk=0, bos=-1, eos=1)
    for side in ("source", "target"):
        (folder / f"{side}.spm").write_bytes(write_sentencepiece(model))
    names = ["</s>", "<unk>", *pieces, "<pad>"]
    ids = {name: id for id, name in enumerate(names)}
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    config = transformers.MarianConfig(
        vocab_size=len(names),
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        max_position_embeddings=32,
        pad_token_id=ids["<pad>"],
        decoder_start_token_id=ids["<pad>"],
        eos_token_id=0,
    )
    return transformers.MarianMTModel(config)


def labelled(seed: int) -> str:
    return f"{text(seed)}\t{'yes' if seed % 2 else 'no'}"


def paired(seed: int) -> str:
    return f"{text(seed)}\t{text(seed + 1)}"


CASES: dict[str, Any] = {
    "bert-classify": (bert, "classify", "tsv", labelled),
    "bert-masked": (bert, "masked_lm", "txt", text),
    "gpt2": (gpt2, "causal_lm", "txt", text),
    "marian": (marian, "translation", "tsv", paired),
}


@torch.no_grad()
def same_logits(ours: Any, theirs: Any) -> None:
    ids = torch.tensor([[2, 6, 7, 8, 3]])
    positions = torch.arange(5)[None]
    if hasattr(ours, "logits"):
        if hasattr(ours, "encode"):
            states = ours(ids, positions, ids, positions)
            expected = theirs(input_ids=ids, decoder_input_ids=ids).logits
        else:
            states, expected = ours(ids, positions), theirs(input_ids=ids).logits
        found = ours.logits(states)
    else:
        states, expected = ours(ids, positions), theirs(input_ids=ids).logits
        if expected.dim() == 2:
            found = ours.sequence_logits(states, positions)
        else:
            found = ours.masked_lm_logits(states)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lora", [0, 2])
@pytest.mark.parametrize("case", CASES)
def test_in_trained_and_out_again(
    case: str, lora: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import transformers

    torch.set_num_threads(1)
    write, task, ending, line = CASES[case]
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    torch.manual_seed(0)
    write(theirs).eval().save_pretrained(theirs)
    data = tmp_path / f"data.{ending}"
    data.write_text("".join(f"{line(seed)}\n" for seed in range(60)), encoding="utf-8")
    run, out = tmp_path / "run", tmp_path / "out"
    flags = {
        "init": theirs,
        "task": task,
        "train": data,
        "data.max-length": 16 if task != "translation" else 30,
        "data.batch-tokens": 128,
        "data.documents": "line",
        "tokenizer.extend": NEW,
        "schedule.kind": "constant",
        "schedule.warmup-steps": 0,
        "schedule.peak-learning-rate": 0.001,
        "lora.rank": lora,
        "max-steps": 3,
        "precision": "fp32",
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    assert main(["train", str(run), *words]) == 0
    assert main(["export", str(run), str(out), "--format", "hf"]) == 0
    capsys.readouterr()
    ours, tokenizers = load_any(run)
    assert tokenizers is not None
    ids = tokenizers.source.encode(f"cat {NEW}")
    assert ids[-1] == tokenizers.source.size - 1
    config = transformers.AutoConfig.from_pretrained(out)
    again = getattr(transformers, config.architectures[0]).from_pretrained(out).eval()
    same_logits(ours.eval(), again)
    back, pair = load_any(out)
    assert pair is not None
    assert pair.source.encode(f"cat {NEW} sat") == tokenizers.source.encode(f"cat {NEW} sat")
    assert pair.source.decode(ids) == tokenizers.source.decode(ids)
    before = read_any_weights(theirs)
    frozen = "encoder" if task != "causal_lm" else "decoder"
    name = f"{frozen}.blocks.0.feedforward.up.weight"
    assert torch.equal(before[name], back.state_dict()[name]) == bool(lora)
    tables = ("target_embedding.weight", "embedding.weight")
    table = next(name for name in tables if name in before)
    old = before[table][: tokenizers.source.size - 1]
    kept = torch.equal(back.state_dict()[table][: len(old)], old)
    assert kept == bool(lora)

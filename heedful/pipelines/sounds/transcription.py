"""Texts of what is said in sounds, by an encoder of sounds and a decoder (Whisper)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import torch

from heedful.data.sound_files import Floats
from heedful.data.sounds.mel_frames import log_mel, read_speech, windows
from heedful.data.text_file import chunks
from heedful.errors import ConfigError, DataError, ModelError
from heedful.models.sounds.transcriber import Transcriber
from heedful.models.sounds.transcriber_spec import PromptSpec
from heedful.pipelines.batching import check_is_list, plan_batches, split_on_oom
from heedful.pipelines.sounds.transcript_search import TranscriptSearch
from heedful.pipelines.text_generation import BATCH_TOKENS, Generation, assembled
from heedful.pipelines.text_pipeline import TextPipeline
from heedful.search.search_settings import GenerationOptions, GenerationSettings, check_width

Sound = str | Path | npt.NDArray[np.floating[Any]]
"""A WAV file, or samples [N] between −1 and 1, 16,000 a second."""

_AT_ONCE = 32  # windows of 30 seconds in memory: 120 MB


class TranscriptionPipeline(TextPipeline[Transcriber]):
    """A writer of what is said in sounds."""

    kind = Transcriber
    verbs = ("generate",)
    refusal = "This model reads no sounds"
    remedy = "Give a Whisper model"

    def generate(
        self,
        sounds: Sequence[Sound],
        *,
        language: str | None = None,
        task: str | None = None,
        settings: GenerationSettings | None = None,
        batch_size: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
        first_name: int = 0,
        **options: Unpack[GenerationOptions],
    ) -> list[Generation]:
        """Write what is said in sounds; batching changes no result.

        A sound that is longer than a window of the model is cut where it is quiet, and the texts of
        its parts are joined by spaces. A silent part has no text.

        Args:
            sounds: WAV files, or samples.
            language: code of the language that is spoken, such as de; recognized in each part if
                neither this nor the model says it.
            task: transcribe, or translate into English; transcribe if unset.
            settings: settings of the search; greedy if unset.
            batch_size: windows read together, instead of `batch_tokens`.
            batch_tokens: states of the encoder read together: windows × states × hypotheses.
            first_name: number of the first sound, on which its random draws depend.
            **options: fields of `GenerationSettings` that override `settings`.

        Returns:
            A text for each sound, in the same order, with the ids of its tokens and their scores.

        Raises:
            ConfigError: when settings contradict each other or the model, or it does not know the
                language or the task.
            DataError: when a sound cannot be read; it is named.
            ModelError: when the model does not say how a transcript begins.
        """
        check_is_list(sounds, "sounds")
        resolved = GenerationSettings.parse({**(settings.plain() if settings else {}), **options})
        if self.spec.prompt is None:
            raise ModelError(
                "The model does not say how a transcript begins",
                where=self.name or None,
                remedy="Put the generation_config.json it was published with beside its "
                "config.json, then use or import that directory again",
            )
        find = TranscriptSearch(self.spec, language, task, self.tokenizer.eos)
        limited = self._limited(resolved, len(find.before))
        parts: list[list[Generation]] = [[] for _ in sounds]
        for some in chunks(_parts(sounds, self.spec.frames), _AT_ONCE):
            plan = plan_batches(
                [self.spec.num_states] * len(some),
                width=limited.width,
                batch_tokens=batch_tokens,
                batch_size=batch_size,
            )
            found: dict[int, Generation] = {}
            work = partial(self._transcribed, some, find, limited, first_name)
            for numbers, generations in split_on_oom(plan, work):
                found.update(zip(numbers, generations, strict=True))
            for number, (sound, _) in enumerate(some):
                parts[sound].append(found[number])
        return [_joined(each) for each in parts]

    def _transcribed(
        self,
        parts: Sequence[tuple[int, Floats]],
        find: TranscriptSearch,
        settings: GenerationSettings,
        first_name: int,
        numbers: Sequence[int],
    ) -> list[Generation]:
        """Return the texts of the parts with these numbers."""
        engine, spec, limit = self.engine, self.spec, settings.max_length
        assert limit is not None
        rows = [log_mel(parts[number][1], spec.frames, spec.bands) for number in numbers]
        frames = torch.from_numpy(np.stack(rows)).to(engine.output_weight.device)
        names = [first_name + parts[number][0] for number in numbers]
        with self.computing():
            found = find(engine, frames, settings, names)
        return [self._with_text(assembled(best, None, limit)) for best in found]

    def _limited(self, settings: GenerationSettings, before: int) -> GenerationSettings:
        """Return settings with a longest length, or refuse those that a transcript cannot have."""
        usual = GenerationSettings().plain()
        for name in ("stop", "coverage_penalty", "json_schema", "regex", "cache"):
            if settings.plain().get(name) != usual.get(name):
                raise ConfigError(
                    "A transcript has the form of what is said", where=name, remedy="Leave it out"
                )
        check_width([self.spec], settings)
        # The last token of a text is read at no position.
        room = self.spec.embedding.positions.max_length - before
        if (asked := max(settings.max_length or 1, settings.min_length)) > room:
            raise ConfigError(
                f"The model has learned positions for {room} tokens of a transcript",
                where=f"max_length = {asked}",
                remedy="Ask for less",
            )
        return settings.limited(room, room)

    def _with_text(self, found: Generation) -> Generation:
        """Return a result with the text of its tokens."""
        prompt: PromptSpec = self.spec.prompt
        last = prompt.without_times
        tokens = [id for id in found.tokens if last is None or id <= last]
        others = tuple(map(self._with_text, found.others))
        return replace(found, text=self.tokenizer.decode(tokens).strip(), others=others)


def _parts(sounds: Sequence[Sound], frames: int) -> Iterator[tuple[int, Floats]]:
    """Yield the number of each sound with its parts that are not silent."""
    for number, sound in enumerate(sounds):
        if isinstance(sound, str | Path):
            if not str(sound).strip():  # an empty line of a list
                continue
            samples = read_speech(Path(sound), str(sound))
        else:
            samples = np.asarray(sound, np.float64)
            if samples.ndim != 1:
                raise DataError(
                    f"The samples have the shape {list(samples.shape)}, and should be one row",
                    where=f"sound {number + 1}",
                    remedy="Take the mean of the channels",
                )
        yield from ((number, part) for part in windows(samples, frames) if part.any())


def _joined(parts: Sequence[Generation]) -> Generation:
    """Return the result for a whole sound; that of silence without parts."""
    if len(parts) == 1:
        return parts[0]
    # Parts may have fewer hypotheses than others.
    ranks = min((len(each.n_best) for each in parts), default=1)
    best, *others = (_whole([each.n_best[rank] for each in parts]) for rank in range(ranks))
    return replace(best, others=tuple(others))


def _whole(parts: Sequence[Generation]) -> Generation:
    return Generation(
        tokens=tuple(token for each in parts for token in each.tokens),
        text=" ".join(each.text for each in parts if each.text),
        score=math.fsum(each.score for each in parts),
        normalized_score=math.fsum(each.normalized_score for each in parts) / max(len(parts), 1),
        token_scores=tuple(score for each in parts for score in each.token_scores),
        ended="length" if any(each.ended == "length" for each in parts) else "end",
    )

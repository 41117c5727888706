"""Raw text in, continuations out: a causal language model with its tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Self, Unpack

import torch

from heedful.decode.generate import BATCH_TOKENS, Generation, generate, stream
from heedful.decode.generation import GenerationOptions, GenerationSettings
from heedful.decode.loading import load_text_model
from heedful.device import Precision, RunningPrecision
from heedful.models.causal_lm import CausalLM
from heedful.models.checkpoint import ReadModel, load_model
from heedful.text.protocol import TextTokenizer
from heedful.text.tokenizer import Tokenizer


class GenerationPipeline:
    """A continuer of raw text.

    Args:
        model: the language model.
        tokenizer: of its texts.
        precision: of the forward passes; float32 if unset.
    """

    def __init__(
        self, model: CausalLM, tokenizer: TextTokenizer, *, precision: Precision | None = None
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.precision = precision

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        device: str = "auto",
        precision: RunningPrecision = "auto",
        read: ReadModel = load_model,
    ) -> Self:
        """Load a model directory.

        Args:
            path: a model directory or a run directory (its best model).
            device: auto, cpu, cuda, cuda:1 or mps.
            precision: auto (float32, on the fastest route that is as exact), fp32, bf16, fp16
                or int8.
            read: what reads a directory.

        Raises:
            ModelError: when there is no model, or one that continues no text.
            ConfigError: when the device or precision is not to be had.
        """
        model, tokenizer, chosen = load_text_model(
            CausalLM,
            path,
            device,
            precision,
            read,
            refusal="This model continues no text",
            remedy="Give a language model, such as one trained with --task causal_lm",
        )
        return cls(model, tokenizer, precision=chosen)

    def generate(
        self,
        prompts: Sequence[str],
        *,
        settings: GenerationSettings | None = None,
        batch_size: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
        first_name: int = 0,
        **options: Unpack[GenerationOptions],
    ) -> list[Generation]:
        """Continue prompts: one continuation for each, in their order.

        Args:
            prompts: the beginnings of texts; an empty one begins a text.
            settings: of the search; defaults if unset.
            batch_size: prompts continued together, instead of `batch_tokens`.
            batch_tokens: positions continued together: prompts × longest × continuations.
            first_name: number of the first prompt, which its random draws depend on.
            **options: fields of `GenerationSettings` that override `settings`.

        Raises:
            ConfigError: when settings contradict each other or the model.
            ModelError: when a prompt and what is to follow it are too long for the model.
            DataError: when a prompt is not Unicode text.
        """
        with self._computing():
            return generate(
                self.model,
                [prompt_ids(self.tokenizer, prompt) for prompt in prompts],
                self.tokenizer,
                ends=(self.tokenizer.eos,),
                settings=settings,
                batch_size=batch_size,
                batch_tokens=batch_tokens,
                first_name=first_name,
                **options,
            )

    def stream(
        self,
        prompt: str,
        *,
        settings: GenerationSettings | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Iterator[str]:
        """Continue one prompt, giving text as soon as it is certain; arguments as `generate`."""
        pieces = stream(
            self.model,
            prompt_ids(self.tokenizer, prompt),
            self.tokenizer,
            ends=(self.tokenizer.eos,),
            settings=settings,
            **options,
        )
        while True:
            with self._computing():  # not while whoever reads the pieces is at work
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """No gradients, and products in the precision chosen."""
        with torch.inference_mode(), self.precision.autocast() if self.precision else nullcontext():
            yield


def prompt_ids(tokenizer: TextTokenizer, prompt: str) -> list[int]:
    """A prompt's ids, at least one, as a language model's texts begin in training."""
    first = (tokenizer.bos,) if isinstance(tokenizer, Tokenizer) else tokenizer.first
    return [*first, *tokenizer.encode(prompt)] or [tokenizer.bos]

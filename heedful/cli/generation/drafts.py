"""Drafts and schemas of `heedful generate`: how continuations are written, and what they may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.cli.parser import flag_group
from heedful.cli.text_io import say
from heedful.durable import open_regular
from heedful.errors import UserError, first_line

if TYPE_CHECKING:
    from heedful.pipelines.text_generation import Generation, GenerationPipeline
    from heedful.search.search_settings import GenerationSettings


@flag_group("Speculative decoding", 16)
class SpeculationFlags:
    """The tokens of greedy search in fewer passes: a draft of several is checked by one pass.

    Args:
        draft: Small model of the same vocabulary that writes drafts.
        lookup: Most tokens of an n-gram: what followed it earlier in the prompt or the text is the
            draft.
        draft_tokens: Most tokens of a draft.
    """

    draft: Path | None = None
    lookup: int | None = None
    draft_tokens: int = 5

    def check(self, *, stream: bool, batch_size: int | None) -> None:
        """Refuse drafts with what they cannot be written with.

        Raises:
            UserError: naming the flags.
        """
        if self != SpeculationFlags() and (stream or batch_size):
            raise UserError(
                "Drafts are written for one prompt after the other, and shown when all is done",
                where="heedful generate",
                remedy="Leave out --stream and --batch-size",
            )


def writer(
    pipeline: GenerationPipeline,
    settings: GenerationSettings,
    speculation: SpeculationFlags,
    batch_size: int | None,
    device: str,
    spoken: Mapping[str, Any],
) -> Callable[[list[str], dict[str, int]], list[Generation]]:
    """Return a function that continues prompts, and adds the numbers of drafts to counts.

    Args:
        pipeline: language model, or model of records or sounds.
        settings: settings of the search.
        speculation: flags of drafts.
        batch_size: prompts in a batch.
        device: device of a model of drafts.
        spoken: language and task of sounds, as far as they are given.
    """

    def plain(prompts: list[str], counts: dict[str, int]) -> list[Generation]:
        return pipeline.generate(
            prompts,
            settings=settings,
            batch_size=batch_size,
            first_name=counts["prompts"],
            **spoken,
        )

    if speculation == SpeculationFlags():
        return plain
    from heedful.pipelines.any_pipeline import loaded_as
    from heedful.pipelines.speculative_generation import speculate

    small = speculation.draft
    draft = None if small is None else loaded_as("causal_lm", small, device=device)

    def drafted(prompts: list[str], counts: dict[str, int]) -> list[Generation]:
        results, numbers = speculate(
            pipeline,
            prompts,
            settings=settings,
            draft=draft,
            lookup=speculation.lookup,
            draft_tokens=speculation.draft_tokens,
        )
        for name in ("drafted", "accepted", "passes"):
            counts[name] = counts.get(name, 0) + getattr(numbers, name)
        return results

    return drafted


def acceptance(counts: dict[str, int]) -> dict[str, float]:
    """Say how many drafted tokens were accepted, and return their share; nothing without drafts."""
    if "drafted" not in counts:
        return {}
    say(f"accepted {counts['accepted']} of {counts['drafted']} drafted tokens")
    return {"acceptance": round(counts["accepted"] / max(counts["drafted"], 1), 3)}


def with_schema(settings: GenerationSettings) -> GenerationSettings:
    """Return settings with the text of the schema whose file they name."""
    path = settings.json_schema
    if not path and not settings.regex:
        return settings
    from heedful.search.structured_output import (  # needs PyTorch
        MOST_CHARACTERS,
        regex_grammar,
        schema_grammar,
    )

    if not path:
        regex_grammar(settings.regex, "--regex")
        return settings
    try:
        with open_regular(Path(path)) as file:
            schema = file.read(4 * MOST_CHARACTERS).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"The schema cannot be read: {first_line(error)}",
            where=path,
            remedy="Give a file with a JSON Schema in UTF-8",
        ) from None
    # Checked here, where the file has a name, and before a model is loaded.
    schema_grammar(schema, path)
    return settings.model_copy(update={"json_schema": schema})

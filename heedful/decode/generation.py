"""How texts are continued, as data."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from heedful.decode.settings import Positive, SearchOptions, SearchSettings


class GenerationSettings(SearchSettings):
    """Greedy search, beam search or sampling of what follows a prompt.

    Being cut at the longest length or at a stop string costs a continuation nothing.
    """

    beam: Positive = Field(1, description="continuations kept alive for a prompt; 1 is greedy")
    n_best: Positive = Field(1, description="continuations returned for a prompt, or samples drawn")
    min_length: Annotated[int, Field(ge=0)] = Field(0, description="fewest new tokens")
    max_length: Positive = Field(100, description="most new tokens")
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), description="texts that end a continuation; it does not hold them"
    )
    cache: Literal["auto", "growing", "static", "ring"] = Field(
        "auto",
        description="where keys and values are kept; a ring, which never grows, holds what a "
        "model with a window sees; auto: a ring for such models, else growing",
    )


class GenerationOptions(SearchOptions, total=False):
    """The fields of `GenerationSettings` as keyword arguments."""

    stop: tuple[str, ...]
    cache: Literal["auto", "growing", "static", "ring"]

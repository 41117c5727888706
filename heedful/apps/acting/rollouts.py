"""Episodes of a model in a world: success in rooms, and coins for the return that was asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from heedful.apps.acting import coins, rooms
from heedful.errors import ModelError
from heedful.pipelines.text_generation import GenerationPipeline
from heedful.text.field_tokenizer import FieldTokenizer

Progress = Callable[[int, int], None]
"""Receiver of the number of finished steps and of all steps."""


@dataclass(frozen=True)
class RoomResult:
    """Episodes in rooms.

    Args:
        done: flag of each episode that reached its goal.
        detours: actions of each such episode beyond those of the shortest path.
    """

    done: tuple[bool, ...]
    detours: tuple[int, ...]


def act_in_rooms(
    pipeline: GenerationPipeline,
    episodes: int,
    *,
    seed: int,
    held_out: bool,
    progress: Progress | None = None,
) -> RoomResult:
    """Let a model act in drawn rooms until it reaches the goal, all episodes side by side.

    Args:
        pipeline: model of records with a picture, an instruction and an action.
        episodes: number of episodes.
        seed: seed of the rooms.
        held_out: flag of instructions that the training data does not have.
        progress: receiver of steps.

    Raises:
        ModelError: when the model has other fields.
    """
    check_fields(pipeline, ("picture", "instruction", "action"))
    draw = Random(seed)
    begun = [rooms.draw_room(draw, held_out=held_out) for _ in range(episodes)]
    current = list(begun)
    taken = [0] * episodes
    for step in range(rooms.LONGEST):
        acting = [number for number, room in enumerate(current) if not room.is_done]
        if not acting:
            break
        written = _written(pipeline, [current[number].prompt() for number in acting])
        for number, record in zip(acting, written, strict=True):
            current[number] = current[number].after(record["action"])
            taken[number] += 1
        if progress is not None:
            progress(step + 1, rooms.LONGEST)
    done = tuple(room.is_done for room in current)
    detours = tuple(
        steps - len(room.route() or ())
        for room, steps, reached in zip(begun, taken, done, strict=True)
        if reached
    )
    return RoomResult(done, detours)


def play_for_coins(
    pipeline: GenerationPipeline,
    episodes: int,
    asked: int | None,
    *,
    seed: int,
    progress: Progress | None = None,
) -> list[int]:
    """Let a model play for coins, and return the coins of each episode.

    Args:
        pipeline: model of episodes, trained with returns or without.
        episodes: number of episodes.
        asked: return that the model is asked for; None for a model of behaviour cloning.
        seed: seed of the first places, and of the model's draws.
        progress: receiver of steps.

    Raises:
        ModelError: when the model has other fields.
    """
    draw = Random(seed)
    games = [coins.draw_game(draw) for _ in range(episodes)]
    ends, _ = play_games(pipeline, games, asked, seed=seed, progress=progress)
    return [len(coins.COINS) - len(game.left) for game in ends]


def play_games(
    pipeline: GenerationPipeline,
    games: Sequence[coins.Game],
    asked: int | None,
    *,
    seed: int,
    progress: Progress | None = None,
) -> tuple[list[coins.Game], list[list[int]]]:
    """Let a model play games to their ends.

    Args:
        pipeline, asked, progress: arguments of `play_for_coins`.
        games: the beginnings.
        seed: seed of the model's draws.

    Returns:
        The games at their ends, and the values of the moments of each, flat.

    Raises:
        ModelError: when the model has other fields.
    """
    check_fields(pipeline, ("moments",))
    games = list(games)
    left = [asked or 0] * len(games)
    pasts: list[list[int]] = [[] for _ in games]
    for step in range(coins.STEPS):
        for past, game, rest in zip(pasts, games, left, strict=True):
            past += [game.place] if asked is None else [max(rest, 0), game.place]
        prompts = [{"moments": past} for past in pasts]
        # The next token is the action; a player is as random as the players that it learned from.
        options = {"max_length": 1, "sampling": True, "seed": seed + step}
        for number, record in enumerate(_written(pipeline, prompts, **options)):
            value = _flat(record["moments"])[-1]
            pasts[number].append(value)
            # Another value than an action is a step that is not taken.
            if value >= coins.FIRST_ACTION:
                games[number], reward = games[number].after(value - coins.FIRST_ACTION)
                left[number] -= reward
        if progress is not None:
            progress(step + 1, coins.STEPS)
    return games, pasts


def check_fields(pipeline: GenerationPipeline, names: Sequence[str]) -> None:
    """Refuse a model that was not trained on records of a world.

    Raises:
        ModelError: naming the fields that it has.
    """
    fields = pipeline.tokenizer
    known = [each.name for each in fields.fields] if isinstance(fields, FieldTokenizer) else []
    if known != list(names):
        raise ModelError(
            f"The model acts on {', '.join(known) or 'texts'}, not on {', '.join(names)}",
            where=pipeline.name or None,
            remedy="Train it with --task tokens on records of: heedful data world",
        )


def _written(
    pipeline: GenerationPipeline, prompts: Sequence[dict[str, Any]], **options: Any
) -> list[dict[str, Any]]:
    """Return the records that a model makes of their beginnings."""
    found = pipeline.generate([json.dumps(prompt) for prompt in prompts], **options)
    return [json.loads(each.text) for each in found]


def _flat(values: list[Any]) -> list[int]:
    return [each for row in values for each in row] if isinstance(values[0], list) else values

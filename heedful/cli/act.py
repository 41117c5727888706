"""`heedful act`, `heedful data world` and `heedful data midi`: what becomes of token sequences.

Models act in small worlds, whose episodes are drawn as records; records of notes become music.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from heedful.cli.flags import DeviceFlag, ModelPath, PrecisionFlag
from heedful.cli.text_io import (
    Output,
    Report,
    output_to,
    refuse_existing,
    refuse_missing_folder,
    say,
    show_table,
    terminal,
)
from heedful.errors import DataError, UserError

if TYPE_CHECKING:
    from heedful.apps.evaluation.bootstrap import Interval

World = Literal["rooms", "coins", "coins-without-returns"]


def act(
    model: ModelPath,
    /,
    *,
    world: World = "rooms",
    episodes: int = 200,
    returns: Annotated[tuple[int, ...], Parameter(name="--return", consume_multiple=True)] = (),
    seed: int = 1,
    device: DeviceFlag = "auto",
    precision: PrecisionFlag = "auto",
    output: Output = Output(),
) -> None:
    """Let a model of token sequences act in a small world.

    In `rooms` it sees a picture, reads an instruction and writes an action at a time (Brohan 2023);
    the share of the episodes that reach the goal is printed, also for things that no instruction of
    the training data names. In `coins` it plays for the return that it is asked for (Chen 2021).

    For example:

        heedful data world rooms.jsonl --world rooms --episodes 5000
        heedful act run --world rooms
        heedful act player --world coins --return 1 3 5

    Args:
        world: World to act in: rooms, coins, or coins for a model that was trained without returns
            (behaviour cloning).
        episodes: Number of episodes, of each kind or each return.
        returns: Coins that the model is asked for, in turn; 0 to 5 if unset.
        seed: Seed of the episodes.
    """
    if episodes < 1:
        raise UserError("At least one episode is needed", where=f"--episodes {episodes}")
    if returns and world != "coins":
        raise UserError(
            "Only coins are played for a return", where="--return", remedy="Add --world coins"
        )
    report = Report("act", output, model=model, world=world, episodes=episodes, seed=seed)
    from heedful.apps.acting.coins import COINS
    from heedful.apps.acting.rollouts import act_in_rooms, play_for_coins
    from heedful.interop.model_loading import load_any
    from heedful.pipelines.text_generation import GenerationPipeline

    if wrong := [each for each in returns if not 0 <= each <= len(COINS)]:
        raise UserError(f"There are {len(COINS)} coins", where=f"--return {wrong[0]}")
    pipeline = GenerationPipeline.load(model, device=device, precision=precision, read=load_any)
    results: dict[str, Interval] = {}
    extra: dict[str, float] = {}
    with terminal() as events:

        def progress(done: int, total: int) -> None:
            events.progress(done, total, "steps")

        if world == "rooms":
            for name, held_out in (("named in training", False), ("never named", True)):
                found = act_in_rooms(
                    pipeline, episodes, seed=seed, held_out=held_out, progress=progress
                )
                results[name] = _mean([float(each) for each in found.done])
                extra[name] = sum(found.detours) / max(len(found.detours), 1)
        else:
            asked = list(returns or range(6)) if world == "coins" else [None]
            for each in asked:
                name = "not asked" if each is None else str(each)
                scores = play_for_coins(pipeline, episodes, each, seed=seed, progress=progress)
                results[name] = _mean([float(score) for score in scores])
    if not output.json:
        _show(world, results, extra, episodes)
    measured = {name: dataclasses.asdict(interval) for name, interval in results.items()}
    report.finish({"scores": measured, **({"detours": extra} if extra else {})})


def data_world(
    out: Path,
    /,
    *,
    world: World = "rooms",
    episodes: int = 1000,
    seed: int = 0,
    output: Output = Output(),
) -> None:
    """Draw episodes of a small world, as records for training.

    For example:

        heedful data world rooms.jsonl --world rooms --episodes 5000
        heedful data world coins.jsonl --world coins --seed 2

    Args:
        out: File for the records, lines of JSON, which appears when all are drawn.
        world: World of the episodes: rooms with instructions and an expert's actions, coins with
            the returns of players of any skill, or coins without returns.
        episodes: Number of episodes.
        seed: Seed of the episodes.
    """
    if episodes < 1:
        raise UserError("At least one episode is needed", where=f"--episodes {episodes}")
    refuse_missing_folder(out)
    report = Report("data world", output, out=out, world=world, episodes=episodes, seed=seed)
    from random import Random

    from heedful.apps.acting import coins, rooms

    draw = Random(seed)
    if world == "rooms":
        records = rooms.draw_records(draw, episodes)
    else:
        records = coins.draw_records(draw, episodes, returns=world == "coins")
    count = 0
    with output_to(out) as file:
        for record in records:
            file.write(json.dumps(record) + "\n")
            count += 1
    if not output.json:
        say(f"{out}: {count:,} records of {episodes:,} episodes")
    report.finish({"records": count})


def _mean(values: list[float]) -> Interval:
    from heedful.apps.evaluation.seed_intervals import student_interval

    return student_interval(values)


def _show(
    world: World, results: dict[str, Interval], detours: dict[str, float], episodes: int
) -> None:
    columns = ["goal", "reached", "95 % interval", "detour"]
    if world != "rooms":
        columns = ["return asked", "coins", "95 % interval"]
    rows = []
    for name, interval in results.items():
        row = [name, f"{interval.score:.3f}", f"{interval.low:.3f} to {interval.high:.3f}"]
        rows.append([*row, *([f"{detours[name]:.2f} actions"] if name in detours else [])])
    show_table(f"{episodes:,} episodes each", columns, rows, numbers=len(columns) - 1)


def data_midi(
    records: Path,
    /,
    *,
    out: Path,
    field: str = "notes",
    lowest: int = 1,
    tempo: float = 90.0,
    output: Output = Output(),
) -> None:
    """Write the notes of records as MIDI files.

    Each record becomes a file. A note is a number: 0 for silence, 1 for the lowest pitch, and so
    on. Each row of the field is a sixteenth note of all voices. `--tokens.reader midi` reads such
    files for training.

    For example:

        heedful generate chorales '{"notes": [[67, 62, 59, 43]]}' --sampling -o tunes.jsonl
        heedful data midi tunes.jsonl --out tunes

    Args:
        records: File of records, lines of JSON, as `heedful generate` writes them.
        out: Folder for the files 1.mid, 2.mid and so on, which must not exist.
        field: Name of the field with the notes.
        lowest: MIDI pitch of number 1.
        tempo: Quarter notes in a minute.
    """
    flags = {"field": field, "lowest": lowest, "tempo": tempo}
    report = Report("data midi", output, flags, records=records, out=out)
    if not 1 <= lowest <= 127:
        raise UserError("A pitch is from 1 to 127", where=f"--lowest {lowest}")
    if not 4 <= tempo <= 1000:
        raise UserError("A tempo is from 4 to 1000", where=f"--tempo {tempo}")
    refuse_existing(out)
    from heedful.data.midi_files import write_pieces
    from heedful.data.record_files import RecordReader

    found = RecordReader(records).records()
    pieces = (_pitches(record.get(field), field, where, lowest) for where, record in found)
    count = write_pieces(out, pieces, tempo=tempo)
    if not output.json:
        say(f"{out}: {count:,} file{'s' * (count != 1)}")
    report.finish({"files": count})


def _pitches(value: object, field: str, where: str, lowest: int) -> list[list[int]]:
    """Return the pitches of a field's rows.

    Raises:
        DataError: when the field holds no rows of pitches.
    """
    rows = value if isinstance(value, list) else []
    if not rows or not all(
        isinstance(row, list)
        and len(row) == len(rows[0])
        and all(type(note) is int and 0 <= note <= 128 - lowest for note in row)
        for row in rows
    ):
        raise DataError(
            f"The field {field!r} holds no notes: rows of as many numbers, 0 to {128 - lowest}",
            where=where,
            remedy="Name the field of the notes by --field, and the pitch of 1 by --lowest",
        )
    return [[note + lowest - 1 if note else 0 for note in row] for row in rows]

"""Small worlds: what is drawn can be solved, and players get what they take."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.apps.acting import coins, rooms
from heedful.apps.acting.rollouts import act_in_rooms, play_for_coins
from heedful.cli.main import main
from heedful.errors import ModelError
from heedful.text.field_tokenizer import FieldTokenizer
from heedful.text.token_fields import TokenField

ACTIONS = tuple(rooms.MOVES)
seeds = st.integers(0, 10_000)


@given(seeds, st.booleans())
def test_rooms_can_be_walked(seed: int, held_out: bool) -> None:
    room = rooms.draw_room(Random(seed), held_out=held_out)
    assert (room.goal in rooms.HELD_OUT) is held_out
    assert all(word in room.instruction for word in room.goal)
    values = [value for row in room.picture() for value in row]
    assert values.count(rooms.AGENT) == 1
    assert rooms.FIRST_THING + rooms.THINGS.index(room.goal) in values
    for action in room.route() or ():
        assert not room.is_done
        before = room.agent
        room = room.after(action)
        assert sum(abs(a - b) for a, b in zip(before, room.agent, strict=True)) == 1
    assert room.is_done


@given(seeds)
def test_no_shorter_way_exists(seed: int) -> None:
    """Every action changes the length of the way by one at most, so the route is a shortest one."""
    room = rooms.draw_room(Random(seed), held_out=False)
    length = len(room.route() or ())
    for action in ACTIONS:
        assert len(room.after(action).route() or ()) >= length - 1


@given(seeds)
def test_returns_are_the_coins_that_follow(seed: int) -> None:
    (record,) = coins.draw_records(Random(seed), 1, returns=True)
    (_, place, _) = record["moments"][0]
    game = coins.Game(divmod(place - coins.FIRST_PLACE, coins.SIDE))
    left = record["moments"][0][0]
    for rest, place, action in record["moments"]:
        assert (rest, place) == (left, game.place)
        assert coins.FIRST_ACTION <= action < coins.VALUES
        game, reward = game.after(action - coins.FIRST_ACTION)
        left -= reward
    assert left == 0


def test_behaviour_cloning_sees_no_returns() -> None:
    with_returns = list(coins.draw_records(Random(3), 5, returns=True))
    without = list(coins.draw_records(Random(3), 5, returns=False))
    assert [[moment[1:] for moment in each["moments"]] for each in with_returns] == [
        each["moments"] for each in without
    ]


@dataclass
class Written:
    text: str


class Stub:
    """A pipeline whose records a function completes."""

    name = "stub"

    def __init__(self, fields: tuple[str, ...], write: Callable[[Any], Any]) -> None:
        self.tokenizer = FieldTokenizer([TokenField.read(text) for text in fields])
        self.write = write

    def generate(self, prompts: list[str], **options: Any) -> list[Written]:
        return [Written(json.dumps(self.write(json.loads(prompt)))) for prompt in prompts]


ROOM_FIELDS = ("picture:15:6x6:given", "instruction:9:any:given", "action:4:1")


def room_of(record: dict[str, Any]) -> rooms.Room:
    """The room that a picture and an instruction show."""
    cells = {
        (row, column): value
        for row, values in enumerate(record["picture"])
        for column, value in enumerate(values)
    }
    things = {
        rooms.THINGS[value - rooms.FIRST_THING]: cell
        for cell, value in cells.items()
        if value >= rooms.FIRST_THING
    }
    (agent,) = [cell for cell, value in cells.items() if value == rooms.AGENT]
    walls = frozenset(cell for cell, value in cells.items() if value == rooms.WALL)
    goal = next(thing for thing in things if " ".join(thing) in record["instruction"])
    return rooms.Room(agent, walls, things, goal, record["instruction"])


def test_an_expert_reaches_every_goal_and_a_statue_none() -> None:
    expert = Stub(ROOM_FIELDS, lambda record: {"action": (room_of(record).route() or [""])[0]})
    found = act_in_rooms(expert, 30, seed=5, held_out=True)  # type: ignore[arg-type]
    assert found.done == (True,) * 30
    assert found.detours == (0,) * 30
    # Against the upper edge: whoever is not told what is up there stays.
    statue = Stub(ROOM_FIELDS, lambda record: {"action": "up"})
    assert sum(act_in_rooms(statue, 30, seed=5, held_out=True).done) < 10  # type: ignore[arg-type]


def test_players_get_the_coins_that_they_take() -> None:
    asked: list[int] = []

    def nearest(record: dict[str, Any]) -> dict[str, Any]:
        *_, rest, place = record["moments"]
        asked.append(rest)
        taken = frozenset(
            divmod(value - coins.FIRST_PLACE, coins.SIDE) for value in record["moments"][1::3]
        )
        game = coins.Game(
            divmod(place - coins.FIRST_PLACE, coins.SIDE), frozenset(coins.COINS - taken)
        )
        return {"moments": [*record["moments"], coins.FIRST_ACTION + game.best_move(Random(1))]}

    player = Stub(("moments:37:12x3",), nearest)
    scores = play_for_coins(player, 40, 5, seed=2)  # type: ignore[arg-type]
    assert 4 <= sum(scores) / 40 <= 5.5
    assert max(asked) == 5
    assert min(asked) == max(0, 5 - max(scores))


def test_a_model_of_other_fields_is_refused() -> None:
    with pytest.raises(ModelError, match="acts on moments, not on picture"):
        act_in_rooms(Stub(("moments:37:12x3",), dict), 1, seed=1, held_out=False)  # type: ignore[arg-type]


def test_commands_draw_and_refuse(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a.jsonl"
    assert main(["data", "world", str(out), "--world", "rooms", "--episodes", "3"]) == 0
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert {frozenset(record) for record in records} == {
        frozenset({"picture", "instruction", "action"})
    }
    capsys.readouterr()
    assert main(["act", "english", "--world", "rooms"]) == 2
    assert "acts on texts" in capsys.readouterr().err
    assert main(["act", "english", "--world", "coins", "--return", "9"]) == 2
    assert "There are 7 coins" in capsys.readouterr().err
    assert main(["act", "english", "--return", "1"]) == 2
    assert main(["data", "world", str(out), "--episodes", "0"]) == 2

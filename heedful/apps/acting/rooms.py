"""Rooms with coloured things and an instruction, such as "go to the red ball" (RT-2's way).

A model sees the room as a picture, reads the instruction and writes an action, each as tokens of
one vocabulary (Brohan 2023). Here a picture is a grid of cells, and the expert is a shortest path.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from heedful.errors import DataError

SIDE = 6
"""Rows and columns of a room."""

COLOURS = ("red", "green", "blue", "yellow")
SHAPES = ("ball", "box", "key")
THINGS = tuple((colour, shape) for colour in COLOURS for shape in SHAPES)
HELD_OUT = (("red", "key"), ("green", "box"), ("blue", "ball"))
"""Things that no instruction of the training data names, though they lie in its rooms."""

PHRASES = ("go to the {} {}", "walk to the {} {}", "find the {} {}")

MOVES: Mapping[str, tuple[int, int]] = {
    "up": (-1, 0),
    "down": (1, 0),
    "left": (0, -1),
    "right": (0, 1),
}
"""Rows and columns of a step in each direction."""

EMPTY, WALL, AGENT = range(3)
FIRST_THING = 3
"""Value of the first thing in a picture; the others follow in the order of `THINGS`."""

_NUM_THINGS = 4
_NUM_WALLS = 5
LONGEST = 20
"""Most actions of an episode; the longest shortest path of 10,000 drawn rooms has 13."""

Cell = tuple[int, int]


@dataclass(frozen=True)
class Room:
    """A room, and what somebody in it was told.

    Args:
        agent: row and column of whoever acts.
        walls: cells that cannot be entered.
        things: cell of each thing.
        goal: thing that the instruction names.
        instruction: text of the instruction.
    """

    agent: Cell
    walls: frozenset[Cell]
    things: Mapping[tuple[str, str], Cell]
    goal: tuple[str, str]
    instruction: str

    @property
    def is_done(self) -> bool:
        """True where the agent stands on the thing that it was told."""
        return self.agent == self.things[self.goal]

    def after(self, action: str) -> Room:
        """Return the room after an action; walls and edges stop a step."""
        cell = _next(self.agent, action)
        return replace(self, agent=cell) if _is_free(cell, self.walls) else self

    def picture(self) -> list[list[int]]:
        """Return the values of all cells [SIDE, SIDE]; the agent hides what it stands on."""
        cells = [[EMPTY] * SIDE for _ in range(SIDE)]
        for row, column in self.walls:
            cells[row][column] = WALL
        for thing, (row, column) in self.things.items():
            cells[row][column] = FIRST_THING + THINGS.index(thing)
        cells[self.agent[0]][self.agent[1]] = AGENT
        return cells

    def route(self) -> list[str] | None:
        """Return the actions of a shortest path to the goal; None where there is none."""
        paths: dict[Cell, list[str]] = {self.agent: []}
        waiting = deque([self.agent])
        while waiting:
            cell = waiting.popleft()
            if cell == self.things[self.goal]:
                return paths[cell]
            # Always in the order of `MOVES`, so that of equal paths the expert takes the same one.
            for action in MOVES:
                following = _next(cell, action)
                if _is_free(following, self.walls) and following not in paths:
                    paths[following] = [*paths[cell], action]
                    waiting.append(following)
        return None

    def prompt(self) -> dict[str, Any]:
        """Return what a model reads before it acts."""
        return {"picture": self.picture(), "instruction": self.instruction}


def draw_room(draw: Random, *, held_out: bool) -> Room:
    """Draw a room whose goal can be reached.

    Args:
        draw: random numbers.
        held_out: flag of an instruction that the training data does not have.
    """
    named = [thing for thing in THINGS if (thing in HELD_OUT) is held_out]
    while True:
        cells = [(row, column) for row in range(SIDE) for column in range(SIDE)]
        draw.shuffle(cells)
        goal = draw.choice(named)
        others = draw.sample([thing for thing in THINGS if thing != goal], _NUM_THINGS - 1)
        things = {thing: cells.pop() for thing in (goal, *others)}
        walls = frozenset(cells.pop() for _ in range(_NUM_WALLS))
        phrase = draw.choice(PHRASES).format(*goal)
        room = Room(cells.pop(), walls, things, goal, phrase)
        if room.route():
            return room


def read_room(picture: Sequence[Sequence[int]], instruction: str) -> Room:
    """Return the room of a picture, and the goal of an instruction.

    Args:
        picture: values of all cells [SIDE, SIDE].
        instruction: text that ends in a colour and a shape.

    Raises:
        DataError: when nobody acts in the room, or the thing is not there.
    """
    cells = {
        (row, column): value
        for row, line in enumerate(picture)
        for column, value in enumerate(line)
    }
    things = {
        THINGS[value - FIRST_THING]: cell for cell, value in cells.items() if value >= FIRST_THING
    }
    agents = [cell for cell, value in cells.items() if value == AGENT]
    named = [thing for thing in things if instruction.split()[-2:] == [*thing]]
    if len(agents) != 1:
        raise DataError(f"{len(agents)} cells of the room hold somebody who acts, not one")
    if not named:
        raise DataError(
            f"The room has nothing that this names: {instruction[:60]!r}",
            remedy="End it in one of: " + ", ".join(" ".join(thing) for thing in things),
        )
    walls = frozenset(cell for cell, value in cells.items() if value == WALL)
    return Room(agents[0], walls, things, named[0], instruction)


def draw_records(draw: Random, episodes: int) -> Iterator[dict[str, Any]]:
    """Yield the moments of the expert's episodes: picture, instruction and action.

    Args:
        draw: random numbers.
        episodes: number of episodes.
    """
    for _ in range(episodes):
        room = draw_room(draw, held_out=False)
        for action in room.route() or ():
            yield {**room.prompt(), "action": action}
            room = room.after(action)


def _next(cell: Cell, action: str) -> Cell:
    row, column = MOVES[action]
    return cell[0] + row, cell[1] + column


def _is_free(cell: Cell, walls: frozenset[Cell]) -> bool:
    return 0 <= cell[0] < SIDE and 0 <= cell[1] < SIDE and cell not in walls

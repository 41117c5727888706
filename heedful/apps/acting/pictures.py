"""Pictures of the small worlds: a square of pixels for each cell, so that a cell is a patch."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from heedful.apps.acting import coins, rooms

CELL = 8
"""Pixels of a cell in each direction."""

Picture = npt.NDArray[np.uint8]

_FLOOR = (238, 234, 224)
_UNKNOWN = (120, 120, 120)
_COLOURS = {
    "red": (200, 40, 40),
    "green": (20, 130, 70),
    "blue": (40, 80, 190),
    "yellow": (215, 160, 0),
    "wall": (90, 84, 78),
    "agent": (20, 20, 24),
    "seen": (190, 180, 160),
}
_SHAPES = {
    "ball": "......../..####../.######./.######./.######./.######./..####..",
    "box": "......../.######./.#....#./.#.##.#./.#.##.#./.#....#./.######.",
    "key": "......../.###..../.#.#..../.######./.#.#.#.#/.###.#../........",
    "wall": "########/#.######/########/######.#/########/#.######/########",
    "agent": "..####../..#..#../..####../...##.../.######./...##.../..#..#..",
    "coin": "......../..####../.##..##./.#.##.#./.#.##.#./.##..##./..####..",
    "dot": "......../......../......../...##.../...##.../......../........",
}
"""Rows of the pixels of a cell; the last one is empty."""


def room_picture(cells: Sequence[int]) -> Picture:
    """Draw a room from the values of its cells, in reading order; absent ones are grey.

    Returns:
        Pixels [rows · CELL, columns · CELL, 3].
    """
    names = {rooms.WALL: ("wall", "wall"), rooms.AGENT: ("agent", "agent")}
    names |= {
        rooms.FIRST_THING + number: (shape, colour)
        for number, (colour, shape) in enumerate(rooms.THINGS)
    }
    count = rooms.SIDE**2
    tiles = [_tile(*names.get(value, ("", ""))) for value in cells[:count]]
    return _board([*tiles, *[_tile("", "", _UNKNOWN)] * (count - len(tiles))], rooms.SIDE)


def coin_picture(player: coins.Cell, left: Collection[coins.Cell], way: Collection[int]) -> Picture:
    """Draw the field of coins.

    Args:
        player: cell of the player.
        left: cells of the coins that nobody took.
        way: indices of the cells on the way here.

    Returns:
        Pixels [rows · CELL, columns · CELL, 3].
    """
    tiles = []
    for index in range(coins.SIDE**2):
        cell = divmod(index, coins.SIDE)
        if cell == player:
            tiles.append(_tile("agent", "agent"))
        elif cell in left:
            tiles.append(_tile("coin", "yellow"))
        else:
            tiles.append(_tile("dot", "seen") if index in way else _tile("", ""))
    return _board(tiles, coins.SIDE)


def _tile(shape: str, colour: str, ground: tuple[int, int, int] = _FLOOR) -> Picture:
    tile = np.full((CELL, CELL, 3), ground, np.uint8)
    for row, line in enumerate(_SHAPES.get(shape, "").split("/")):
        for column, mark in enumerate(line):
            if mark == "#":
                tile[row, column] = _COLOURS[colour]
    return tile


def _board(tiles: Sequence[Picture], side: int) -> Picture:
    rows = [np.concatenate(tiles[at : at + side], axis=1) for at in range(0, len(tiles), side)]
    return np.concatenate(rows)

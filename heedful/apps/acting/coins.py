"""A field of coins, and episodes by players of any skill (Decision Transformer; Chen 2021).

An episode is a sequence of moments: the return that is still to come, the place, the action. A
model of such sequences acts for the return that it is asked for; without returns it is behaviour
cloning. Coins lie at the same places in every episode, and each is taken once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

SIDE = 5
COINS = frozenset({(0, 0), (0, 3), (1, 4), (2, 1), (3, 3), (4, 0), (4, 4)})
"""Cells of the coins."""

STEPS = 12
"""Actions of an episode, in which the best players get 4.8 coins on average."""

MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))

# Values of one vocabulary: returns, then places, then actions.
FIRST_PLACE = len(COINS) + 1
FIRST_ACTION = FIRST_PLACE + SIDE * SIDE
VALUES = FIRST_ACTION + len(MOVES)
"""Number of different values of a moment."""

Cell = tuple[int, int]


@dataclass(frozen=True)
class Game:
    """The state of an episode.

    Args:
        player: cell of the player.
        left: coins that nobody took yet.
    """

    player: Cell
    left: frozenset[Cell] = COINS

    def after(self, move: int) -> tuple[Game, int]:
        """Return the game after a move, and its reward: 1 for a coin, else 0."""
        row, column = MOVES[move]
        cell = (
            min(max(self.player[0] + row, 0), SIDE - 1),
            min(max(self.player[1] + column, 0), SIDE - 1),
        )
        return Game(cell, self.left - {cell}), int(cell in self.left)

    @property
    def place(self) -> int:
        """The player's cell as a value of a moment."""
        return FIRST_PLACE + self.player[0] * SIDE + self.player[1]

    def best_move(self, draw: Random) -> int:
        """Return a move towards the nearest coin that is left; any move if there is none."""
        if not self.left:
            return draw.randrange(len(MOVES))
        nearest = min(_distance(self.player, coin) for coin in self.left)
        goals = [coin for coin in self.left if _distance(self.player, coin) == nearest]
        goal = draw.choice(sorted(goals))
        nearer = [
            move
            for move in range(len(MOVES))
            if _distance(self.after(move)[0].player, goal) < _distance(self.player, goal)
        ]
        return draw.choice(nearer)


def draw_game(draw: Random) -> Game:
    """Draw the beginning of an episode, on a cell without a coin."""
    cells = [(row, column) for row in range(SIDE) for column in range(SIDE)]
    return Game(draw.choice([cell for cell in cells if cell not in COINS]))


def draw_records(draw: Random, episodes: int, *, returns: bool) -> Iterator[dict[str, Any]]:
    """Yield episodes as records.

    Args:
        draw: random numbers.
        episodes: number of episodes.
        returns: flag of the returns to come, which behaviour cloning does not see.
    """
    for _ in range(episodes):
        game, clumsiness = draw_game(draw), draw.random()
        moments, rewards = [], []
        for _ in range(STEPS):
            is_clumsy = draw.random() < clumsiness
            move = draw.randrange(len(MOVES)) if is_clumsy else game.best_move(draw)
            moments.append([game.place, FIRST_ACTION + move])
            game, reward = game.after(move)
            rewards.append(reward)
        if returns:
            # The return to come counts the reward of the moment's own action.
            moments = [[sum(rewards[at:]), *moment] for at, moment in enumerate(moments)]
        yield {"moments": moments}


def _distance(one: Cell, other: Cell) -> int:
    return abs(one[0] - other[0]) + abs(one[1] - other[1])

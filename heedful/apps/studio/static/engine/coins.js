// The field of coins: episodes of places and actions, and their picture.

const SIDE = 5;
const LYING = [[0, 0], [0, 3], [1, 4], [2, 1], [3, 3], [4, 0], [4, 4]].map(([row, column]) => row * SIDE + column);
const MOVES = [["up", -1, 0], ["down", 1, 0], ["left", 0, -1], ["right", 0, 1]];
const STEPS = 12; // actions of an episode

// Values of one vocabulary: returns, then places, then actions.
const FIRST_PLACE = LYING.length + 1;
const FIRST_ACTION = FIRST_PLACE + SIDE * SIDE;

const CELL = 8; // pixels in each direction
const COLOURS = { floor: [238, 234, 224], agent: [20, 20, 24], coin: [215, 160, 0], dot: [190, 180, 160] };
const SHAPES = {
  agent: "..####../..#..#../..####../...##.../.######./...##.../..#..#../........",
  coin: "......../..####../.##..##./.#.##.#./.#.##.#./.##..##./..####../........",
  dot: "......../......../......../...##.../...##.../......../......../........",
  floor: "",
};

/** An episode: the cell of the player, and the coins that nobody took yet. */
class Game {
  constructor(player) {
    Object.assign(this, { player, left: new Set(LYING) });
  }

  /** Make a move; 1 for a coin, else 0. */
  move(number) {
    const [, down, across] = MOVES[number];
    const within = (value) => Math.min(Math.max(value, 0), SIDE - 1);
    this.player = within(Math.floor(this.player / SIDE) + down) * SIDE + within((this.player % SIDE) + across);
    return Number(this.left.delete(this.player));
  }
}

export const Coins = {
  VALUES: FIRST_ACTION + MOVES.length,

  /** A value of a moment in words. */
  words(value) {
    if (value < FIRST_PLACE) return `return-to-go ${value}`;
    const place = value - FIRST_PLACE;
    return value < FIRST_ACTION ? `at ${Math.floor(place / SIDE) + 1}, ${(place % SIDE) + 1}` : MOVES[value - FIRST_ACTION][0];
  },

  /**
   * Play an episode; the world answers each action.
   * @param begun the return that is asked for, and the first place
   * @param act draws an action, from the values since the last one and the number of the step
   * @returns all values
   */
  play([asked, place], act) {
    const game = new Game(place - FIRST_PLACE);
    const past = [];
    let rest = asked;
    for (let step = 0; step < STEPS; step += 1) {
      const values = [Math.max(rest, 0), game.player + FIRST_PLACE];
      const action = act(values, step);
      past.push(...values, action);
      // Another value than an action is a step that is not taken.
      if (action >= FIRST_ACTION) rest -= game.move(action - FIRST_ACTION);
    }
    return past;
  },

  /** The picture after some values, with the tokens of each cell. */
  drawn(codes) {
    const places = Array.from({ length: SIDE * SIDE }, () => []);
    let game = null;
    for (const [at, code] of codes) {
      if (code >= FIRST_PLACE && code < FIRST_ACTION) {
        places[code - FIRST_PLACE].push(at);
        game ??= new Game(code - FIRST_PLACE);
      } else if (code >= FIRST_ACTION) game?.move(code - FIRST_ACTION);
    }
    const { player, left } = game ?? { player: -1, left: new Set(LYING) };
    const tiles = places.map((tokens, cell) => (cell === player ? "agent" : left.has(cell) ? "coin" : tokens.length ? "dot" : "floor"));
    return { places, patches: Uint8Array.from(tiles.flatMap(tile)), side: SIDE * CELL, patch: CELL, coins: LYING.length - left.size };
  },
};

/** Bytes of a cell, by channel, row and column. */
function tile(name) {
  const marks = SHAPES[name].replaceAll("/", "");
  return COLOURS.floor.flatMap((ground, channel) => Array.from({ length: CELL * CELL }, (_, i) => (marks[i] === "#" ? COLOURS[name][channel] : ground)));
}

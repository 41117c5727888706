// What the engine cannot do, in the words that a page shows.

/** What went wrong, where, and what to do: the fields of a `StudioError`. */
export class Refusal extends Error {
  constructor({ what, where = null, remedy = null }) {
    super(what);
    this.what = what;
    this.where = where;
    this.remedy = remedy;
  }
}

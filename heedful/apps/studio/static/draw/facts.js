// Numbers with names, in a row; without the library of charts, for pages that draw none.

import { h } from "../dom.js";

/** @param pairs [name, value, key for tests and links] */
export const facts = (pairs) =>
  h("dl", { class: "facts" }, pairs.map(([name, value, key]) =>
    h("div", {}, h("dt", {}, name), h("dd", { "data-fact": key ?? null }, value))));

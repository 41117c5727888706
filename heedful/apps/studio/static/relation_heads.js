// Heads that find one word of a relation from the other, as measured on trees: a model's card has them.

import { button } from "./controls.js";
import { folded, h, number, section, table } from "./dom.js";
import { clearHeads, exampleHead, placeNamed } from "./subject.js";

const percent = (share) => `${number(100 * share, 2)} %`;

/** What a head finds: what a pronoun means, where a translator's card notes it for that, and relations that it finds better than a fixed place; undefined without one. */
export function relationName(studio, model, head) {
  const noted = placeNamed(studio, model)?.noted_head;
  return [...(noted?.part === "cross" && isAt(noted, head) ? [`what “${noted.word}” means`] : []), ...relationsOf(studio, model, head).map((each) => each.relation)].join(", ") || undefined;
}

/** What was measured of a head alone, as sentences; empty where nothing was. */
export function relationEvidence(studio, model, head) {
  const noted = exampleHead(studio, model, head.part);
  const told = noted && isAt(noted, head) ? [noted.about] : [];
  return [...told, ...relationsOf(studio, model, head).map((each) => `${each.relation}: its strongest line is right for ${percent(each.share)} of ${number(each.count)} words; ${fixed(each.offset)}: ${percent(each.offset_share)}.`)].join(" ");
}

const isAt = (noted, { part, layer, head }) => noted.part === part && noted.layer === layer + 1 && noted.head === head + 1;

const relationsOf = (studio, model, head) => clearHeads(studio, model).filter((each) => isAt(each, head));

function fixed(offset) {
  if (offset === 1) return "always the next word";
  if (offset === -1) return "always the word before";
  return offset > 0 ? `always the word ${offset} places on` : `always the word ${-offset} places before`;
}

/** The table of all relations that were measured of a model, with buttons that open their heads. */
export function relationSection(studio, model, open) {
  const all = placeNamed(studio, model)?.noted_heads ?? [];
  if (!all.length) return h("div", {});
  const clear = clearHeads(studio, model);
  const others = all.filter((each) => !clear.includes(each));
  const row = (each) => [each.relation, `${each.layer}.${each.head}`, percent(each.share), `${fixed(each.offset)}: ${percent(each.offset_share)}`, number(each.count),
    button("Open", () => open(each), { quiet: true })];
  const columns = ["relation", "layer.head", "right", "a fixed place", "words", ""];
  const beaten = others.map((each) => `${each.relation} (best head ${percent(each.share)}, ${fixed(each.offset)} ${percent(each.offset_share)})`);
  const title = "Heads and the grammar of sentences";
  const parts = () => [clear.length ? table("Heads that find the word better than a fixed place", columns, clear.map(row)) : h("p", { class: "sentence" }, "No head of this model finds the words of any relation clearly better than a fixed place."),
    folded("How this was measured", () => h("p", {}, "In a treebank people have marked which word belongs to which. For each relation, the head that finds the second word from the first most often was chosen on some documents of GUM, and measured on others: the word with its strongest line is the right one, the word itself and special tokens left out. Beside it stands the best fixed place, which needs no understanding.",
      all[0].part === "decoder" ? " This model reads from left to right, so it was asked only where the second word comes first." : "",
      clear.length && others.length ? ` For other relations the best head is not clearly better than a fixed place: ${beaten.join("; ")}.` : "")),
    !clear.length ? folded("The best head of each relation", () => table("The best head of each relation", columns, others.map(row))) : ""];
  return clear.length ? section(title, ...parts()) : folded(title, () => h("div", {}, parts()));
}

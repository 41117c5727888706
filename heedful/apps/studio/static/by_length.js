// Recorded scores by the length of the source, of translators with one vector and with attention.

import { call, live } from "./api.js";
import { figure, foldedSection, h } from "./dom.js";
import { lineChart } from "./draw/lines.js";

// As in the page's other chart: the Transformer, an LSTM, and one that has no line there.
const colourOf = (name) => (name.includes("Transformer") ? 0 : name.includes("attention") ? 2 : 1);

/** The section. */
export const byLength = () => foldedSection("Does it matter? BLEU by the length of the source", unfolded);

function unfolded() {
  const picture = figure("BLEU by the length of the source",
    "Multi30k, English to German, 2.1 million parameters each, 900 updates; lines are means of three trainings. One vector has to hold a whole sentence, and the longer it is, the more is lost.");
  const body = h("div", {}, picture.element);
  live(body, (signal) => call("paths", "by_length", {}, signal), ({ words, sentences, networks }) => {
    const mean = (scores) => scores.reduce((sum, score) => sum + score, 0) / scores.length;
    lineChart(picture.host, {
      series: networks.map((each) => ({ name: each.name, colour: colourOf(each.name), dots: true, points: words.map((count, k) => [count, mean(each.bleu[k])]) })),
      x: { label: "words of the source, mean of a group" }, y: { label: "BLEU", zero: true },
      describe: `BLEU of ${networks.length} translators by the length of the source, in groups of ${sentences.join(", ")} sentences.`,
    });
  })();
  return h("div", {}, body,
    h("p", { class: "note" }, "Attention lifts the LSTM by about 10 BLEU, to the Transformer's level: here reading the source again is what counts, and the LSTM can do that too. What it cannot do is read all words at once. The training is short, and at 17 words, of 108 sentences, the LSTM with attention is ahead in all three; this does not say which is best in the end."));
}

// Recorded scores by the length of the source, of translators with one vector and with attention.

import { call, live } from "./api.js";
import { figure, folded, h, number } from "./dom.js";
import { lineChart } from "./draw/lines.js";

// As in the page's other pictures: the Transformer, the LSTM, and one that is not there.
const colourOf = (name) => (name.includes("Transformer") ? 0 : name.includes("attention") ? 2 : 1);

/** The section. */
export function byLength() {
  const picture = figure("BLEU by the length of the sentence");
  const title = h("h2", {}, "Does it matter?");
  const body = h("div", {}, picture.element);
  live(body, (signal) => call("paths", "by_length", {}, signal), ({ words, sentences, networks }) => {
    const mean = (scores) => scores.reduce((sum, score) => sum + score, 0) / scores.length;
    const lines = networks.map((each) => ({ name: each.name.replace(" (Bahdanau)", ""), colour: colourOf(each.name), dots: true, points: words.map((count, k) => [count, mean(each.bleu[k])]) }));
    const [one, attending, transformer] = lines;
    // Where attention lifts the recurrent network most.
    const k = words.reduce((best, _, i) => (lift(i) > lift(best) ? i : best), 0);
    function lift(i) {
      return attending.points[i][1] - one.points[i][1];
    }
    const at = (line) => number(line.points[k][1], 3);
    title.textContent = `Does it matter? BLEU at ${number(Math.round(words[k]))} words: LSTM ${at(one)}, with attention ${at(attending)}, Transformer ${at(transformer)}`;
    lineChart(picture.host, {
      series: lines, height: 210, ends: true, mark: [words[k], `${number(lift(k), 3)} more with attention`],
      x: { label: "words of the sentence" }, y: { label: "BLEU", zero: true },
      describe: `BLEU of ${networks.length} translators by the length of the source, in groups of ${sentences.join(", ")} sentences.`,
    });
  })();
  const verdict = h("p", { class: "note" }, "An LSTM with attention is level with the Transformer here or ahead, as it reads the source again, too; what the Transformer wins is that it reads all words at once.");
  return h("section", {}, title, body, verdict, folded("What was measured",
    h("p", { class: "note" }, "Multi30k, English to German, 2.1 million parameters each, 900 updates; lines are means of three trainings, at the mean length of a group of sentences. One vector has to hold a whole sentence, and the longer it is, the more is lost."),
    h("p", { class: "note" }, "Attention lifts the LSTM by about 10 BLEU. The training is short, and at 17 words, of 108 sentences, the LSTM with attention is ahead in all three; this does not say which is best in the end.")));
}

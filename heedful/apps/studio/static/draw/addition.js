// One token's vector on its way through a block, as strips: the stream, what is added, and the sum.

import { h, number, s } from "../dom.js";
import { css, diverging, redrawn } from "./colours.js";
import { largest } from "./strip.js";

const ROW = { height: 22, gap: 3 };
const EXACT = 0.01; // of the largest number: sums that are scaled or normed on the way are not drawn as sums

/** The rows {sign, name, values} of a token, or null where the stream is no plain sum. */
export function additionRows(parts, token) {
  const by = new Map(parts.map((part) => [part.key, part]));
  const vector = (key) => by.get(key).channels?.[token];
  if (!vector("input")) return null;
  const rows = [{ sign: "", name: "stream in", values: vector("input") }];
  for (const part of parts.filter(({ role, on_stream: on }) => role === "sum" || (role === "norm" && on))) {
    const values = vector(part.key);
    if (part.role === "norm") {
      rows.push({ sign: "", name: "after the norm", values });
      continue;
    }
    const [stream, added] = part.reads;
    if (added === undefined || !vector(added)) return null;
    const most = largest(values);
    if (values.some((value, i) => Math.abs(vector(stream)[i] + vector(added)[i] - value) > EXACT * most)) return null;
    rows.push({ sign: "+", name: { self: "self-attention", cross: "cross-attention", feedforward: "feed-forward" }[part.place] ?? part.place, values: vector(added) }, { sign: "=", name: "sum", values });
  }
  return rows;
}

/** Draw the rows on one scale, with the sum of one channel in numbers: that under the pointer. */
export function additionPicture(host, rows) {
  const most = largest(...rows.map(({ values }) => values));
  const count = rows[0].values.length;
  const first = rows[1].values.reduce((best, value, i) => (Math.abs(value) > Math.abs(rows[1].values[best]) ? i : best), 0);
  const said = h("p", { class: "note", "data-fact": "channel-sum" });
  const drawing = h("div", {});
  const key = h("span", { class: "ramp" });
  let channel = first;
  // A sum that goes on is written again: “1 + 2 = 3; 3 + 4 = 7”.
  const again = (i) => (rows[i].sign === "+" && rows[i - 1].sign === "=" ? `; ${number(rows[i - 1].values[channel], 3)}` : "");
  const term = ({ sign, values }, i) => again(i) + (sign === "+" && values[channel] < 0 ? ` − ${number(-values[channel], 3)}`
    : `${sign ? ` ${sign} ` : i ? "; normed " : ""}${number(values[channel], 3)}`);
  const tell = () => said.replaceChildren(`Channel ${channel + 1}, framed: `, h("strong", {}, rows.map(term).join("")));
  redrawn(host, () => {
    key.style.background = `linear-gradient(to right, ${[-1, 0, 1].map((value) => css(diverging(value))).join(", ")})`;
    const width = Math.max(280, host.clientWidth);
    const left = 128;
    const step = (width - left - 2) / count;
    const height = rows.length * (ROW.height + ROW.gap);
    const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0", "aria-label": `${rows.map(({ sign, name }) => `${sign} ${name}`).join(", ")}: ${count} channels. Arrow keys go from channel to channel.` },
      rows.flatMap(({ sign, name, values }, i) => {
        const y = i * (ROW.height + ROW.gap);
        return [s("text", { class: `addition${sign === "+" ? " added" : ""}`, x: 0, y: y + 15.5 }, `${sign} ${name}`.trim()),
          ...values.map((value, j) => s("rect", { x: left + j * step, y, width: step - 0.6, height: ROW.height, fill: css(diverging(value / most)) }, s("title", {}, `Channel ${j + 1}: ${number(value, 3)}`)))];
      }));
    const frame = s("rect", { class: "addition-frame", y: 0.5, width: step, height: height - ROW.gap - 1, rx: 2 });
    const mark = (to) => {
      channel = Math.min(count - 1, Math.max(0, to));
      frame.setAttribute("x", left + channel * step - 0.3);
      tell();
    };
    svg.append(frame);
    svg.addEventListener("pointermove", (event) => mark(Math.floor((event.clientX - svg.getBoundingClientRect().left - left) / step)));
    svg.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (by === undefined) return;
      event.preventDefault();
      mark(channel + by);
    });
    mark(channel);
    drawing.replaceChildren(svg);
  });
  host.replaceChildren(said, drawing, h("p", { class: "key" }, number(-most, 3), key, number(most, 3)));
}

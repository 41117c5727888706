import { call, live, StudioError } from "../api.js";
import { button, check, choice, more, panel } from "../controls.js";
import { figure, folded, h, number, percent, refilled, table } from "../dom.js";
import { headGrid, markHead } from "../draw/head_grid.js";
import { pad, read, write } from "../draw/pad.js";
import { greyPicture, isBlank, labelBars, patchNumbers, patchPicture, pixelsOf, shareKey } from "../draw/patches.js";
import { base64Of } from "../upload.js";

const able = (studio) => studio.places.filter((place) => place.kind === "vision").map((place) => place.name);

/** What the page opens on: in the digit of the model at hand a head that looks along the ring, from its lower edge; else the whole picture. */
const opened = (model) => (model === "digits" ? { patch: 37, head: 1 } : { patch: -1, head: 0 });

const LARGE = 440; // pixels of the picture that leads

export const defaults = (studio) => ({
  model: able(studio)[0] ?? "", picture: "", drawing: "", ...opened(able(studio)[0]), layer: 0, rollout: false,
});

export function mount({ root, side, state, studio }) {
  const models = able(studio);
  if (!models.length) {
    root.append(h("p", { class: "sentence" }, "None of the models at hand reads images. Start the studio with one that does, such as a run of ", h("code", {}, "heedful train digits --task images"), "."));
    return;
  }
  const picture = choice(state, "picture", { label: "Picture", options: [["", "…"]] });
  const file = h("input", { type: "file", id: "file", accept: "image/png,image/jpeg" });
  const layer = choice(state, "layer", { label: "Layer", options: [[0, "the last"]] });
  const head = choice(state, "head", { label: "Head", options: [[0, "the mean of all"]] });
  const easel = h("div", {});
  const verdict = figure("It reads");
  const inside = figure("One patch");
  const looking = figure("Where it looks");
  const resting = figure("What it rests on");
  const legend = h("div", {});
  const heads = figure("Every head of the chosen patch", "A row for each layer, all on one scale. Click a head to see it large.");
  const numbers = h("div", {});
  const body = h("div", { class: "result" },
    h("div", { class: "easel-row leading" }, looking.element, h("div", {}, easel, verdict.element)), h("div", { class: "easel-row" }, inside.element, resting.element), numbers);
  const whole = button("The whole image", () => state.set({ patch: -1 }, { step: true }), { quiet: true });
  side.append(
    panel(models.length > 1 ? choice(state, "model", { label: "Model", options: models }) : null, picture,
      h("div", { class: "field" }, h("label", { for: "file" }, "Upload a PNG or JPEG"), file),
      more("Layer and head", layer, head, check(state, "rollout", { label: "Rollout: through all layers" }))), heads.element);
  root.append(body);
  looking.host.after(h("div", { class: "row" }, legend, whole));

  let upload = null;
  let known = null;
  let board = null;

  file.addEventListener("change", async () => {
    if (!file.files.length) return;
    upload = file.files[0];
    if (state.values.picture === "upload") ask();
    else state.set({ picture: "upload", patch: -1 }, { step: true });
    isNew = true;
  });

  /** What the model takes, and the controls that depend on it. */
  async function meet(model, signal) {
    if (known?.model === model) return;
    const found = await call("image", "about", { model }, signal);
    known = { model, ...found };
    picture.fill([...found.examples.map((name, i) => [i ? name : "", `example: ${name}`]), ["drawing", "a drawing"], ["upload", "an uploaded file"]]);
    fill(layer, state, "layer", found.layers, "the last");
    fill(head, state, "head", found.heads, "the mean of all");
    board = pad({ side: found.canvas, changed: (rows) => state.set({ picture: "drawing", drawing: write(rows) }) });
    const clean = button("Clear", () => state.set({ drawing: "", picture: "drawing" }, { step: true }), { quiet: true });
    easel.replaceChildren(h("h3", {}, "Draw here"), board.element,
      h("div", { class: "row" }, clean, h("span", { class: "note" }, model === "digits" ? "One large digit." : "")));
    board.set(read(state.values.drawing, found.canvas));
  }

  /** The picture as a call names it. */
  async function pictured() {
    const { model, picture: name, drawing } = state.values;
    if (name === "upload") return { model, upload: await base64Of(upload, known.max_file) };
    return name === "drawing" ? { model, drawing: read(drawing, known.canvas) } : { model, example: name || known.examples[0] };
  }

  let last = null;
  let isNew = true; // a picture whose patches were not erased yet
  const askErased = live(resting.element, async (signal) => call("image", "erase", await pictured(), signal), ({ patches, label, probability }) => {
    const own = last.labels[0].label;
    resting.element.hidden = !patches.length;
    if (!patches.length) return;
    patchPicture(resting.host, { ...last, pixels: pixelsOf(last), shares: null, erased: patches, describe: `The picture without ${patches.length} patches.` });
    const less = patches.length === 1 ? "this patch" : `these ${patches.length} patches`;
    resting.words.replaceChildren(...(label === null ? [`Even with ${less} black it reads “${own}”.`] : [`With ${less} black it reads “`, h("strong", { "data-fact": "erased" }, label), `”, ${percent(probability)}: the “${own}” rests on them.`]));
  });

  const ask = live(body, async (signal) => {
    const { model, picture: name, patch, layer: l, head: a, rollout } = state.values;
    await meet(model, signal);
    if (name === "upload" && upload === null) {
      throw new StudioError({ what: "An uploaded picture is not part of the address", remedy: "Choose the file again" });
    }
    const asked = { model, patch: patch < 0 ? null : patch, layer: l ? l - 1 : null, head: a ? a - 1 : null, rollout };
    return call("image", "look", { ...asked, ...await pictured() }, signal);
  }, (found) => {
    refilled(verdict.host, () => showClasses(verdict, found));
    if (state.values.picture !== "drawing") board.set(greyPicture(found, known.canvas));
    last = found;
    show(found);
    if (!isNew) return;
    isNew = false;
    resting.element.hidden = isBlank(found);
    if (!isBlank(found)) askErased();
  });

  function show(found) {
    const { patch, layer: l, head: a, rollout } = state.values;
    const count = found.side / found.patch;
    const own = { pixels: pixelsOf(found), side: found.side, patch: found.patch, channels: found.channels, chosen: patch };
    const from = patch >= 0 ? `the patch in row ${Math.floor(patch / count) + 1}, column ${(patch % count) + 1}` : found.whole === null ? "all patches, whose mean stands for the image" : "[CLS], which stands for the image";
    const where = rollout ? `layers 1 to ${l || known.layers}, followed through.` : `layer ${l || known.layers}, ${a ? `head ${a}` : "the mean of its heads"}.`;
    const blank = isBlank(found);
    looking.words.textContent = blank ? "Draw one large digit on the small square."
      : `From ${from}: ${where}${found.whole === null ? "" : ` [CLS] itself has ${number(found.whole, 3)}.`} ${count} × ${count} patches are the words of the picture: click one.`;
    looking.element.querySelector("h3").textContent = patch < 0 ? "Where it looks" : "Where the framed patch looks";
    whole.disabled = patch < 0;
    inside.element.hidden = legend.hidden = numbers.hidden = heads.element.hidden = blank;
    heads.element.hidden ||= found.heads === null;
    if (found.heads) {
      headGrid(heads.host, found.heads, (to, one) => state.set({ layer: to === known.layers - 1 ? 0 : to + 1, head: one + 1, rollout: false }, { step: true }), () => undefined);
      markHead(heads.host, (l || known.layers) - 1, rollout ? [] : a ? [a - 1] : []);
    }
    const choose = (chosen) => state.set({ patch: chosen }, { step: true });
    inside.words.textContent = patch < 0 ? "Click a patch to see its numbers." : `${number(found.patch ** 2 * found.channels)} numbers, the brightness of its pixels. A matrix makes a vector of them.`;
    if (patch < 0) inside.host.replaceChildren();
    else patchNumbers(inside.host, own);
    patchPicture(looking.host, { ...own, size: LARGE, shares: blank ? null : found.shares, choose, describe: blank ? "The picture in patches." : `The picture, coloured by the attention of ${from}.` });
    legend.replaceChildren(shareKey(Math.max(...found.shares), known.channels === 1 ? "#000" : undefined));
    const rows = Array.from({ length: count }, (_, i) => found.shares.slice(i * count, (i + 1) * count));
    numbers.replaceChildren(folded("Attention to each patch in numbers", () => table("Attention to each patch, by row and column", ["", ...counted(count)], rows.map((row, i) => [i + 1, ...row.map((share) => number(share, 3))]))));
  }

  state.watch((values, changed) => {
    head.querySelector("select").disabled = values.rollout;
    if (changed.includes("model") && !changed.includes("patch")) state.set({ patch: -1, layer: 0, head: 0 });
    isNew ||= ["model", "picture", "drawing"].some((name) => changed.includes(name));
    // *Clear* on an example changes no line of a drawing, yet what is seen.
    if (board && values.picture === "drawing" && ["drawing", "picture"].some((name) => changed.includes(name))) board.set(read(values.drawing, known.canvas));
    ask();
  });
  ask();
}

const counted = (count) => Array.from({ length: count }, (_, i) => i + 1);

function showClasses({ host, words }, found) {
  if (isBlank(found)) {
    words.textContent = "";
    host.append(h("p", { class: "note", "data-fact": "label" }, "Nothing is drawn yet."));
    return;
  }
  words.textContent = found.classes > found.labels.length ? `The most probable ${found.labels.length} of ${number(found.classes)} labels.` : "The probability of each label.";
  host.append(labelBars(found.labels));
}

function fill(select, state, name, count, first) {
  select.fill([[0, first], ...Array.from({ length: count }, (_, i) => [i + 1, String(i + 1)])]);
  select.querySelector("select").value = String(state.values[name]);
}

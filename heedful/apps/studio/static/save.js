// With every drawing: save it as it is seen, its numbers, or the address that shows it again.

import { h } from "./dom.js";
import { pictureOf } from "./picture.js";
import { openedState } from "./state.js";

const SHARP = 2; // pixels of a PNG for each of the page
const GIVEN_AWAY = 1000; // milliseconds after which a browser has taken a file

const titleIn = (root) => root.querySelector("h3")?.textContent;

/** What stands below a picture: the page, the model and the text, and the settings as the page shows them. */
export function captionOf(root, title = titleIn(root)) {
  const { model, text } = openedState()?.values ?? {};
  const seen = (element) => element.checkVisibility({ visibilityProperty: false });
  const chosen = [...document.querySelectorAll(":is(.side, .which) .field > select")].filter((select) => select.id && seen(select.parentElement) && !/^(example|model)/.test(select.id))
    .map((select) => `${select.parentElement.querySelector("label").textContent}: ${select.selectedOptions[0]?.textContent ?? ""}`);
  const heads = [...document.querySelectorAll(".head[aria-pressed]")];
  const on = heads.filter((each) => each.getAttribute("aria-pressed") === "true").map((each) => Number(each.dataset.head) + 1);
  const pressed = [...document.querySelectorAll(".piece[aria-pressed=true]")].map((each) => `chosen word: ${each.textContent}`);
  return [
    [document.querySelector("h1")?.textContent, title].filter(Boolean).join(" – "),
    [model && `Model: ${model}`, text && `“${text.trim()}”`].filter(Boolean).join(", "),
    [...chosen, heads.length ? `heads: ${on.length === heads.length ? `all ${heads.length}` : on.join(", ") || "none"}` : null, ...pressed].filter(Boolean).join("; "),
  ].filter(Boolean);
}

/** Tables of the numbers that are drawn: {title, columns, rows}; a drawing gives one or several. */
const numbersOf = (root) => [root, ...root.querySelectorAll("*")].filter((each) => each.numbers && each.checkVisibility()).flatMap((each) => each.numbers());

/** A table as text, with what would be read as another cell in quotes. */
const asCsv = ({ columns, rows }) => [columns, ...rows].map((row) => row.map((cell) => {
  const text = String(cell ?? "");
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}).join(",")).join("\r\n");

/** A picture as the bytes of a PNG. */
async function asPng(svg) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(svg))}`;
  await image.decode();
  const canvas = h("canvas", { width: SHARP * Number(svg.getAttribute("width")), height: SHARP * Number(svg.getAttribute("height")) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

const bytes = (type, ...parts) => new Blob(parts, { type });

/** The files of a picture, or of its numbers. */
const FILES = {
  SVG: (root, caption) => bytes("image/svg+xml", new XMLSerializer().serializeToString(pictureOf(root, caption))),
  PNG: (root, caption) => asPng(pictureOf(root, caption)),
  JSON: (root, caption) => bytes("application/json", JSON.stringify({ caption, address: openedState()?.link(), tables: numbersOf(root) }, null, 1)),
  CSV: (root) => bytes("text/csv", numbersOf(root).map(asCsv).join("\r\n\r\n"), "\r\n"),
};

function nameOf(title, kind) {
  const words = [document.querySelector("h1")?.textContent, title].filter(Boolean).join(" ");
  return `${words.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "")}.${kind.toLowerCase()}`;
}

async function copyLink(said) {
  const link = openedState()?.link() ?? location.href;
  const where = ["127.0.0.1", "localhost", "[::1]"].includes(location.hostname) ? " It opens in this browser, while this studio runs." : "";
  try {
    await navigator.clipboard.writeText(link);
    said.replaceChildren(`Copied.${where}`);
  } catch {
    const shown = h("input", { type: "text", readonly: true, value: link, "aria-label": "Address of this picture" });
    said.replaceChildren(shown, ` Copy it with the keyboard.${where}`);
    shown.select();
  }
}

/**
 * The control of a drawing.
 * @param root what is saved, as it is seen
 * @param title tells the title of what is seen
 */
export function saves(root, title = () => titleIn(root)) {
  const said = h("span", { class: "note", role: "status" });
  const row = h("span", { class: "row", hidden: true });
  const save = async (kind) => {
    const name = nameOf(title(), kind);
    try {
      const address = URL.createObjectURL(await FILES[kind](root, captionOf(root, title())));
      h("a", { href: address, download: name }).click();
      setTimeout(() => URL.revokeObjectURL(address), GIVEN_AWAY);
      said.textContent = `Saved as ${name}.`;
    } catch (error) {
      said.textContent = `Not saved: ${error.message}`;
    }
  };
  const files = Object.keys(FILES).map((kind) => h("button", { type: "button", class: "quiet", onclick: () => save(kind) }, kind));
  row.append(...files, h("button", { type: "button", class: "quiet", onclick: () => copyLink(said) }, "Copy link"), said);
  // A drawing may come after the row was opened, and its numbers with it.
  const offer = () => files.filter((each) => /JSON|CSV/.test(each.textContent)).forEach((each) => {
    const absent = !numbersOf(root).length;
    if (each.hidden !== absent) each.hidden = absent; // an attribute that is set anew would be seen again
  });
  const drawn = new MutationObserver(offer);
  const opener = h("button", {
    type: "button", class: "quiet", "aria-expanded": "false",
    onclick: () => {
      row.hidden = !row.hidden;
      opener.setAttribute("aria-expanded", String(!row.hidden));
      said.replaceChildren();
      offer();
      if (row.hidden) drawn.disconnect();
      else drawn.observe(root, { subtree: true, childList: true, attributeFilter: ["hidden"] });
    },
  }, "Save");
  const control = h("div", { class: "saves" }, opener, row);
  // It stands above every drawing, also where a page names it after one.
  queueMicrotask(() => root.nextElementSibling === control && root.before(control));
  return control;
}

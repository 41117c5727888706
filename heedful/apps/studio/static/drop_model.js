// A model of one's own, dropped onto a page or chosen as a folder: its files are sent to the studio,
// which checks them and lists the model.

import { addressOf } from "./address.js";
import { call, problem, StudioError } from "./api.js";
import { button } from "./controls.js";
import { engineering, h } from "./dom.js";

const READ_AT_ONCE = 1000; // entries of a folder, and the most that the studio looks at

/** Let a folder be dropped anywhere on the page; what comes of it stands in a box at its foot. */
export function acceptDrops() {
  let depth = 0; // of elements that are entered: leaving a child is not leaving the page
  const brings = (event) => event.dataTransfer?.types.includes("Files");
  const mark = (on) => document.body.classList.toggle("dropping", on);
  addEventListener("dragenter", (event) => {
    if (!brings(event)) return;
    depth += 1;
    mark(true);
  });
  addEventListener("dragleave", (event) => {
    if (!brings(event)) return;
    depth = Math.max(0, depth - 1);
    mark(depth > 0);
  });
  addEventListener("dragover", (event) => brings(event) && event.preventDefault());
  addEventListener("drop", async (event) => {
    depth = 0;
    mark(false);
    if (!brings(event)) return;
    const { items, files } = event.dataTransfer;
    const folder = [...items].map((item) => item.webkitGetAsEntry?.()).find((entry) => entry?.isDirectory);
    if (!folder && event.target.closest?.("input[type=file]")) return; // a picture, for its own control
    event.preventDefault();
    const single = [...files].map((file) => ({ name: file.name, file })); // read now: later they are gone
    if (folder) await send(folder.name, await filesOf(folder));
    else await send("model", single);
  });
}

/** The part of the start page that says so, with a button for those who do not drag. */
export function dropArea() {
  const picker = h("input", { type: "file", webkitdirectory: true, id: "folder", class: "unseen", tabindex: "-1", "aria-label": "Folder of a model" });
  picker.addEventListener("change", () => {
    const files = [...picker.files].map((file) => ({ name: file.webkitRelativePath.split("/").slice(1).join("/"), file }));
    const name = picker.files[0]?.webkitRelativePath.split("/")[0] ?? "model";
    picker.value = ""; // the same folder may be chosen again
    send(name, files);
  });
  return h("div", { class: "drop-area" },
    h("p", {}, "Drop the folder of a model or a run here, or anywhere on a page: ", h("code", {}, "config.json"), ", ", h("code", {}, "model.safetensors"), ", ", h("code", {}, "tokenizer.json"), "."),
    h("p", {}, button("Choose a folder", () => picker.click(), { quiet: true }), picker),
    h("p", { class: "note" }, "It stays on this machine: the studio keeps a copy until it stops."));
}

/** The files of a folder and of its folder model; those of checkpoints are not looked at. */
async function filesOf(folder, path = "") {
  const found = [];
  for (const entry of await listed(folder.createReader())) {
    if (entry.isFile) found.push({ name: path + entry.name, file: await new Promise((resolve, reject) => entry.file(resolve, reject)) });
    else if (path === "" && entry.name === "model") found.push(...await filesOf(entry, "model/"));
  }
  return found;
}

async function listed(reader) {
  const all = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length || all.length > READ_AT_ONCE) return all;
    all.push(...some);
  }
}

let box = null;

/** Send the files one after the other, and say how far it is. */
async function send(name, files) {
  const bar = h("progress", { max: 1, value: 0, "aria-label": `Sending ${name}` });
  const words = h("p", { role: "status" }, `Looking at ${name} …`);
  const stopping = new AbortController();
  const stop = button("Stop", () => stopping.abort(), { quiet: true });
  const next = h("div", { class: "drop-box" }, words, bar, stop);
  if (box) box.replaceWith(next);
  else document.body.append(next);
  box = next;
  const done = (...content) => next.replaceChildren(...content, button("Close", () => {
    next.remove();
    if (box === next) box = null;
  }, { quiet: true }));
  try {
    const facts = files.slice(0, READ_AT_ONCE).map(({ name: file, file: { size } }) => ({ name: file, size }));
    const { drop, files: wanted } = await call("dropped", "begin", { name, files: facts }, stopping.signal);
    const chosen = files.filter((each) => wanted.includes(each.name));
    const total = chosen.reduce((sum, each) => sum + each.file.size, 0);
    let before = 0;
    for (const each of chosen) {
      await sendFile(drop, each, stopping.signal, (sent) => {
        bar.value = total ? (before + sent) / total : 1;
        words.textContent = `${name}: ${engineering(before + sent, "B")} of ${engineering(total, "B")}`;
      });
      before += each.file.size;
    }
    bar.removeAttribute("value");
    words.textContent = `Reading ${name} …`;
    const place = await call("dropped", "end", { drop }, stopping.signal);
    dispatchEvent(new Event("modeldropped"));
    done(h("p", { role: "status" }, h("strong", {}, place.name), " is here. Pages offer it once they are opened again: ",
      h("a", { href: location.href }, "this page"), ", ", h("a", { href: addressOf("") }, "the start"), "."));
  } catch (error) {
    if (error.name === "AbortError") done(h("p", { role: "status" }, `${name} was not sent.`));
    else done(problem(error));
  }
}

/** Send one file. Only this older way of asking tells how much has left. */
function sendFile(drop, { name, file }, signal, tell) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    const failed = (facts) => reject(new StudioError(facts));
    request.open("POST", `/api/dropped/file?${new URLSearchParams({ drop, name })}`);
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.responseType = "json";
    request.upload.addEventListener("progress", (event) => tell(event.loaded));
    request.addEventListener("load", () => (request.status === 200 ? resolve()
      : failed(request.response?.what ? request.response : { what: `The studio answered ${request.status}` })));
    request.addEventListener("error", () => failed({ what: "The file could not be sent", where: name, remedy: "Check that heedful studio still runs, then drop the folder again" }));
    request.addEventListener("abort", () => reject(new DOMException("stopped", "AbortError")));
    signal.addEventListener("abort", () => request.abort());
    request.send(file);
  });
}

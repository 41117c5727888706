// The start page: the chapters of the course with a small drawing each, and the models at hand.

import { addressOf, site } from "./address.js";
import { studioFacts } from "./api.js";
import { h, number } from "./dom.js";
import { dropArea } from "./drop_model.js";
import { answers } from "./lesson.js";
import { openingPicture } from "./opening.js";
import { thumbnail } from "./thumbnails.js";

const FIRST_PAGES = { translator: "translate", causal_lm: "decoding", encoder: "tour", vision: "image", records: "everywhere", sounds: "everywhere" };
const KINDS = { translator: "translator", causal_lm: "language model", encoder: "text encoder", vision: "image encoder", records: "model of token sequences", sounds: "encoder of sounds" };

/** The parts of the start page. */
export function startPage(studio) {
  const first = studio.pages[0];
  return [
    h("h1", {}, "See a Transformer at work"),
    h("div", { class: "row begins" },
      h("p", { class: "about" }, `A Transformer lets each word look at the others, and writes one word after the other; see how, in ${studio.pages.length} pages in ${studio.course.chapters.length} chapters whose pictures ${site ? "models in this page" : "models on this machine"} compute.`),
      h("a", { class: "begin", href: addressOf(first.name) }, "Begin the tour")),
    openingPicture(studio),
    h("ol", { class: "cards" }, studio.course.chapters.map((chapter, i) => card(studio, chapter, i))),
    h("h2", {}, "Models and runs"),
    placeList(studio),
    site ? h("p", { class: "note" }, `For models and runs of your own, and to train: pip install 'heedful[studio]', then heedful studio.`) : dropArea(),
    h("p", { class: "note" }, `Heedful ${studio.version}. The address of a page holds all of its settings. ${site ? "Copy it to show somebody else the same picture." : "It opens on this machine alone, for as long as this studio runs: heedful studio --export writes a course that can be sent."}`),
  ].filter(Boolean);
}

function card(studio, chapter, index) {
  const pages = chapter.pages.map((name) => studio.pages.find((page) => page.name === name));
  const questions = pages.flatMap((page) => studio.course.lessons.find((each) => each.page === page.name)?.questions ?? []);
  const count = questions.length;
  const given = answers();
  const right = questions.filter((each) => given[each.text] === each.options[each.right]).length;
  return h("li", { class: "card" },
    h("a", { class: "cover", href: addressOf(pages[0].name) }, thumbnail(chapter.pages[0]),
      h("strong", {}, `${index + 1}. ${chapter.title}`)),
    h("p", {}, chapter.summary),
    pages.length > 1 ? h("p", { class: "inside" }, pages.flatMap((page, i) => [i ? " · " : "", h("a", { href: addressOf(page.name) }, page.title)])) : null,
    count ? h("p", { class: "note" }, right ? `${right} of ${count} ${count === 1 ? "question" : "questions"} answered` : count === 1 ? "1 question" : `${count} questions`) : null);
}

const LIVE = 3000; // milliseconds between two looks at a run that trains

/** The models and runs; those that train say how far they are, as long as the page is open. */
function placeList(studio) {
  const list = h("ul", { class: "places" });
  const fill = (places) => list.replaceChildren(...places.filter((each) => !each.compared).map(place));
  fill(studio.places);
  const refresh = async () => {
    const { places } = await studioFacts().catch(() => studio); // away for a moment: as before
    fill(places);
    return places;
  };
  addEventListener("modeldropped", refresh);
  const watch = async (places) => {
    if (!places.some((each) => each.training)) return;
    await new Promise((resolve) => setTimeout(resolve, LIVE));
    watch(await refresh());
  };
  watch(studio.places);
  return list;
}

function place(each) {
  const about = each.problem ? h("span", { class: "problem" }, each.problem)
    : each.summary ? "" : [each.kind ? KINDS[each.kind] ?? each.kind : "no model yet", each.run ? ", with its run" : ""].join("");
  const page = FIRST_PAGES[each.kind];
  const name = h("strong", {}, each.name);
  return h("li", {}, page && !each.problem ? h("a", { href: addressOf(page, `${page === "everywhere" ? "records" : "model"}=${encodeURIComponent(each.name)}`) }, name) : name, " ", about, each.summary ? h("span", { class: "note" }, `– ${each.summary}`) : null,
    each.training ? h("span", { class: "note training" }, ` – ${progressOf(each)}`) : null);
}

function progressOf({ training, kind }) {
  if (training.seconds_ago === null) return "training has not begun";
  const far = `step ${number(training.step)}${training.loss === null ? "" : `, loss ${number(training.loss, 3)}`}`;
  if (training.ended) return `trained: ${far}`;
  if (!training.active) return `${far}; nothing new for ${number(Math.round(training.seconds_ago / 60))} minutes`;
  return `training now: ${far}${kind ? "" : "; its model comes with the first validation"}`;
}

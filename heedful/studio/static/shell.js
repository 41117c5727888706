// The frame around every page: navigation, title, what one sees; then the page's own script.

import { problem, studioFacts, StudioError } from "./api.js";
import { h } from "./dom.js";
import { openState } from "./state.js";

const main = document.getElementById("page");
const nav = document.getElementById("pages");
const menu = document.querySelector(".menu");

menu.addEventListener("click", () => {
  const open = menu.getAttribute("aria-expanded") !== "true";
  menu.setAttribute("aria-expanded", String(open));
});

/** Words about a page; what stands between ` is code. */
function prose(text) {
  return text.split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part));
}

function drawNavigation(pages, current) {
  const links = [{ name: "", title: "Start" }, ...pages].map((page) =>
    h("li", {}, h("a", {
      href: `/${page.name}`,
      "aria-current": page.name === current ? "page" : null,
    }, page.title)));
  nav.replaceChildren(h("ul", {}, links));
}

function drawStart(studio) {
  document.title = "Heedful studio";
  const names = { translator: "translator", causal_lm: "language model", encoder: "text encoder", vision: "image encoder" };
  const places = studio.places.map((place) => h("li", {},
    h("strong", {}, place.name), " ",
    place.problem ? h("span", { class: "problem" }, place.problem)
      : [place.kind ? names[place.kind] ?? place.kind : "no model yet", place.run ? ", with its run" : ""].join("")));
  main.replaceChildren(
    h("h1", {}, "Transformers at work"),
    h("p", { class: "about" }, "Every picture here is computed on this machine by the code that trains and runs the models. The address holds all settings: copy it to show somebody else the same."),
    h("ul", { class: "cards" }, studio.pages.map((page) => h("li", {},
      h("a", { href: `/${page.name}` }, h("strong", {}, page.title), h("span", {}, page.summary))))),
    h("h2", {}, "Models and runs"),
    places.length ? h("ul", { class: "places" }, places) : h("p", {}, "None was given."),
    h("p", { class: "note" }, `Heedful ${studio.version}`));
}

async function drawPage(studio, page) {
  document.title = `${page.title} – Heedful studio`;
  const root = h("div", { class: `body ${page.name}` });
  main.replaceChildren(h("h1", {}, page.title), h("p", { class: "about" }, prose(page.about)), root);
  const script = await import(`./pages/${page.name}.js`);
  const state = openState(script.defaults(studio));
  await script.mount({ root, state, studio });
}

async function start() {
  const current = location.pathname.slice(1);
  try {
    const studio = await studioFacts();
    drawNavigation(studio.pages, current);
    const page = studio.pages.find((each) => each.name === current);
    if (page) await drawPage(studio, page);
    else drawStart(studio);
    if (current && !page) {
      main.prepend(problem(new StudioError({ what: "There is no such page", where: location.pathname, remedy: "Choose one of these" })));
    }
  } catch (error) {
    main.append(problem(error));
  }
  main.setAttribute("aria-busy", "false");
}

start();

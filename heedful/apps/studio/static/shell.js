// The frame around every page: navigation, title, the page's own script, and what the course asks.

import { addressOf, currentPage, embedded, site } from "./address.js";
import { problem, studioFacts, StudioError } from "./api.js";
import { startPage } from "./course.js";
import { lessonOf } from "./lesson.js";
import { besideTitles, h, prose } from "./dom.js";
import { acceptDrops } from "./drop_model.js";
import { saves } from "./save.js";
import { carried, openState } from "./state.js";

const main = document.getElementById("page");
const nav = document.getElementById("pages");
const menu = document.querySelector(".menu");

menu.addEventListener("click", () => {
  const open = menu.getAttribute("aria-expanded") !== "true";
  menu.setAttribute("aria-expanded", String(open));
});

function drawNavigation({ pages, course }, current) {
  const link = (name, title) => h("li", {}, h("a", { href: addressOf(name), "aria-current": name === current ? "page" : null }, title));
  const title = (name) => pages.find((page) => page.name === name).title;
  nav.replaceChildren(h("ul", {}, link("", "Start")),
    h("ol", { class: "chapters" }, course.chapters.map((chapter) => h("li", {},
      h("span", { class: "chapter" }, chapter.title), h("ul", {}, chapter.pages.map((name) => link(name, title(name))))))));
}

/** The controls of a page: a column beside the picture; on a narrow screen a drawer. */
function sideColumn() {
  const side = h("aside", { class: "side", id: "side", "aria-label": "Settings" });
  const opener = h("button", {
    type: "button", class: "opener", "aria-expanded": "false", "aria-controls": "side",
    onclick: () => {
      const open = opener.getAttribute("aria-expanded") !== "true";
      opener.setAttribute("aria-expanded", String(open));
      opener.textContent = open ? "Close settings" : "Settings";
      side.classList.toggle("open", open);
    },
  }, "Settings");
  side.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && opener.getAttribute("aria-expanded") === "true") {
      opener.click();
      opener.focus();
    }
  });
  // A panel that is taller than the window goes along with the page until its end is seen.
  new ResizeObserver(() => side.style.setProperty("--tall", `${side.offsetHeight}px`)).observe(side);
  return { side, opener };
}

async function drawPage(studio, page) {
  document.title = `${page.title} – Heedful studio`;
  const root = h("div", { class: `body ${page.name}` });
  // What is wide, such as a table, goes where no settings stand beside it.
  const below = h("div", { class: `body below ${page.name}` });
  const { side, opener } = sideColumn();
  const script = await import(`./pages/${page.name}.js`);
  // A picture that needs the whole width has its settings in a line above it.
  main.replaceChildren(
    h("h1", {}, page.title), h("p", { class: "about" }, prose(page.about)),
    h("div", { class: script.wide ? "stage wide" : "stage" }, h("h2", { class: "unseen" }, "Picture"), root, side), below, opener);
  const state = openState(script.defaults(studio), script.counted);
  carried(state, studio, script.kinds ?? []);
  await script.mount({ root, below, side, state, studio });
  side.hidden = opener.hidden = side.childElementCount === 0;
  main.append(...lessonOf(studio, page));
}

async function start() {
  const current = currentPage();
  try {
    const studio = await studioFacts();
    drawNavigation(studio, current);
    const page = studio.pages.find((each) => each.name === current);
    if (page) await drawPage(studio, page);
    else {
      document.title = "Heedful studio";
      main.replaceChildren(...startPage(studio));
    }
    if (current && !page) {
      main.prepend(problem(new StudioError({ what: "There is no such page", where: location.pathname, remedy: "Choose one of these" })));
    }
  } catch (error) {
    main.append(problem(error));
  }
  main.setAttribute("aria-busy", "false");
}

besideTitles(saves);
document.documentElement.classList.toggle("embedded", embedded);
if (!site) acceptDrops();
start();

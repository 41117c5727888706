// The end of a page: what to try, and questions with their answers.

import { addressOf } from "./address.js";
import { h, prose } from "./dom.js";

const lesson = (studio, page) => studio.course.lessons.find((each) => each.page === page.name);

const KEPT = "heedful-answers"; // of this browser: what was last chosen, by the words of a question

/** What was answered before, by the words of the questions. */
export function answers() {
  try {
    return JSON.parse(localStorage.getItem(KEPT)) ?? {};
  } catch {
    return {}; // storage may be forbidden, or hold something else
  }
}

function keep(question, option) {
  try {
    localStorage.setItem(KEPT, JSON.stringify({ ...answers(), [question.text]: question.options[option] }));
  } catch {
    // then it lasts as long as the page
  }
}

/** The parts that belong below the picture of a page, and the way to the next page. */
export function lessonOf(studio, page) {
  const own = lesson(studio, page);
  const parts = [];
  if (own?.tries.length) {
    parts.push(h("section", { class: "tries" }, h("h2", {}, "Try this"),
      h("ul", {}, own.tries.map(({ text, query }) => h("li", {}, query ? h("a", { href: addressOf(page.name, query) }, prose(text)) : prose(text))))));
  }
  if (own?.questions.length) {
    parts.push(h("section", { class: "questions" }, h("h2", {}, "Questions"),
      own.questions.map((question, i) => asked(question, i, page))));
  }
  const at = studio.pages.findIndex((each) => each.name === page.name);
  const next = studio.pages[at + 1];
  const before = studio.pages[at - 1];
  parts.push(h("nav", { class: "onward", "aria-label": "Course" },
    h("span", {}, before ? h("a", { href: addressOf(before.name), rel: "prev" }, `← ${before.title}`) : null),
    h("span", {}, next ? h("a", { href: addressOf(next.name), rel: "next" }, `${next.title} →`) : null)));
  return parts;
}

function asked(question, index, page) {
  const answer = h("p", { class: "answer", role: "status" });
  let restore = () => {};
  const options = question.options.map((option, i) => {
    const input = h("input", { type: "radio", name: `question-${index}`, value: i });
    const choose = () => {
      const right = i === question.right;
      for (const each of options) each.className = "check";
      options[i].className = "check wrong";
      options[question.right].className = "check right";
      answer.replaceChildren(h("strong", {}, right ? "Yes. " : "Not quite. "), question.reason, " ",
        question.query ? h("a", { href: addressOf(page.name, question.query) }, "See it in the picture") : "");
    };
    input.addEventListener("change", () => {
      choose();
      keep(question, i);
    });
    if (answers()[question.text] === option) restore = () => {
      input.checked = true;
      choose();
    };
    return h("label", { class: "check" }, input, h("span", {}, option));
  });
  restore(); // once all options are there, as choosing one clears the others
  return h("fieldset", { class: "question" }, h("legend", {}, question.text), options, answer);
}

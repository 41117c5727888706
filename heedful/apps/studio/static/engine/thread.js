// What runs in the thread of a page: it takes calls as messages, and answers each by its number.

import { served } from "./served.js";

const own = served();

addEventListener("message", async ({ data: { number, call, settings } }) => {
  try {
    postMessage({ number, value: await own[call](...settings) });
  } catch (error) {
    // A refusal's fields are what a page shows; of other errors the words go across.
    const { what, where, remedy, message } = error;
    postMessage({ number, refused: what ? { what, where, remedy } : null, message });
  }
});
postMessage({ ready: true });

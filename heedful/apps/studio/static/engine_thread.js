// The models of an exported site compute in a thread of their own, and the page stays quick. The
// thread's script is made of the modules that the page holds, as a page from file:// can load none.
// Where a browser or a host's policy starts no such thread, the page computes.

import { site } from "./address.js";

let made = null;

/** The calls `load` and `ask`, as of `engine/served.js`; `ask` takes a signal, too. */
export function engine() {
  made ??= inThread().catch(inPage);
  return made;
}

async function inPage() {
  const { served } = await import("./engine/served.js");
  performance.mark("engine in the page");
  return served();
}

async function inThread() {
  const address = URL.createObjectURL(new Blob([site.threadSource("engine/", "engine/thread.js")], { type: "text/javascript" }));
  const worker = new Worker(address);
  await new Promise((resolve, reject) => {
    worker.onmessage = resolve;
    worker.onerror = reject; // also where a policy forbids it
  });
  URL.revokeObjectURL(address);
  performance.mark("engine in a thread");
  return calls(worker);
}

function calls(worker) {
  const waiting = new Map();
  let count = 0;
  worker.onmessage = ({ data: { number, value, refused, message } }) => {
    const { resolve, reject } = waiting.get(number);
    waiting.delete(number);
    if (refused) reject(refused);
    else if (message === undefined) resolve(value);
    else reject(new Error(message));
  };
  const send = (call, settings, moved = []) => new Promise((resolve, reject) => {
    count += 1;
    waiting.set(count, { resolve, reject });
    worker.postMessage({ number: count, call, settings }, moved);
  });
  let last = Promise.resolve();
  return {
    load: (name, files) => send("load", [name, files], [files["model.safetensors"]]),
    /** One at a time: what nobody waits for any more is not begun. */
    ask(page, call, body, signal) {
      const own = last.then(() => {
        if (signal?.aborted) throw new DOMException("stopped", "AbortError");
        return send("ask", [page, call, body]);
      });
      last = own.catch(() => {});
      return own;
    },
  };
}

// Runs the studio's engine for its tests: requests as lines of JSON, an answer a line.
// node driver.mjs ENGINE, where ENGINE is a copy of static/engine in a package of modules.

import { existsSync, readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const load = (name) => import(pathToFileURL(`${process.argv[2]}/${name}.js`));
const { answer } = await load("answers");
const { loadModel } = await load("model");
const { read } = await load("readings");
const { seenWords } = await load("seen_words");
const { greyRows, resized } = await load("uploads");

const models = new Map();

function modelAt(directory) {
  if (directory === null) return undefined;
  if (!models.has(directory)) {
    const files = {};
    for (const name of ["config.json", "tokenizer.json", "target_tokenizer.json", "reading.json", "pictures.json", "target_words.json"]) {
      const path = `${directory}/${name}`;
      if (existsSync(path)) files[name] = JSON.parse(readFileSync(path, "utf-8"));
    }
    files["pictures.json"] ??= {};
    const names = `${process.argv[2]}/../names.json`; // which an export writes
    if (existsSync(names)) files["names.json"] = JSON.parse(readFileSync(names, "utf-8"));
    const { buffer, byteOffset, length } = readFileSync(`${directory}/model.safetensors`);
    files["model.safetensors"] = buffer.slice(byteOffset, byteOffset + length);
    models.set(directory, loadModel(files));
  }
  return models.get(directory);
}

const packed = (values) => Buffer.from(values.buffer, values.byteOffset, values.byteLength).toString("base64");

const OPERATIONS = {
  tokens: (model, { text }) => {
    const ids = model.source.encode(text);
    return {
      ids, pieces: model.source.pieces(ids), spelled: model.source.spelled(text), spans: model.source.spans(model.source.spelled(text)), masked: model.source.encodeMasked(text),
      text: model.source.decode(ids),
    };
  },
  pass: (model, { request }) => {
    const { states, capture } = model.capture(read(model, request));
    const { width } = model.spec;
    const masked = () => Array.from({ length: states.length / width }, (_, row) => [...model.maskedLogits(states.subarray(row * width, (row + 1) * width))]);
    const logits = model.generates ? model.logits(states) : Float32Array.from(masked().flat());
    const wanted = [...capture].filter(([address]) => /(weights|output)$/.test(address));
    return {
      logits: packed(logits),
      tensors: Object.fromEntries(wanted.map(([address, { values }]) => [address, packed(values)])),
    };
  },
  seen: (_, { words, word }) => ({ result: Boolean(seenWords(words)(word)) }),
  squared: (_, { rgba, width, side }) => ({ rows: resized(greyRows(rgba, width), side) }),
  answer: async (model, { page, name, body }) => {
    const start = process.cpuUsage().user;
    const result = await answer(page, name, body, model);
    return { result: result ?? null, milliseconds: (process.cpuUsage().user - start) / 1000 };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { model, operation, ...request } = JSON.parse(line);
  let reply;
  try {
    reply = await OPERATIONS[operation](modelAt(model), request);
  } catch (error) {
    reply = { what: error.what ?? String(error.stack), where: error.where ?? null, remedy: error.remedy ?? null };
  }
  process.stdout.write(`${JSON.stringify(reply)}\n`);
}

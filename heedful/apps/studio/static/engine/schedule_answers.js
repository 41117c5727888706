// The answer of the page Schedule: learning rates by formula.

import { fraction } from "./forms.js";

const CURVE_STEPS = 400;
const KINDS = ["inverse_sqrt", "cosine", "linear", "constant"];

/** The learning rate at a few hundred steps, for every kind of schedule. */
export function curve({ kind = "inverse_sqrt", warmup_steps: warmup = 4000, peak_learning_rate: given = null, final_learning_rate: final = 0, width = 512, max_steps: last = 40000 }) {
  const peak = given ?? 1 / Math.sqrt(width * Math.max(1, warmup));
  const stride = Math.max(1, Math.floor(last / CURVE_STEPS));
  const steps = new Set([1, last, ...(warmup >= 1 && warmup <= last ? [warmup] : [])]);
  for (let step = stride; step <= last; step += stride) steps.add(step);
  const share = (step) => Math.min(1, (step - warmup) / Math.max(1, last - warmup));
  const rates = {
    inverse_sqrt: (step) => peak * Math.sqrt(Math.max(1, warmup) / step),
    cosine: (step) => final + (peak - final) * 0.5 * (1 + Math.cos(Math.PI * share(step))),
    linear: (step) => peak + (final - peak) * share(step),
    constant: () => peak,
  };
  const ordered = [...steps].sort((a, b) => a - b);
  const curves = Object.fromEntries(KINDS.map((each) => [each, ordered.map((step) => (step < warmup ? (peak * step) / warmup : rates[each](step)))]));
  const own = given === null ? "" : `peak_learning_rate = ${fraction(given)}\n`;
  const toml = `max_steps = ${last}\n\n[schedule]\nkind = "${kind}"\nwarmup_steps = ${warmup}\n${own}final_learning_rate = ${fraction(final)}\n`;
  return { steps: ordered, curves, peak, peak_step: Math.max(1, warmup), toml };
}

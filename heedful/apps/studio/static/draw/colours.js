// Colours for numbers. Ramps are straight lines in OKLab, a space in which equal steps look equally
// large, so that no number seems to stand out which does not.

const dark = () => document.documentElement.dataset.theme === "dark";

/** OKLab (lightness, green-red, blue-yellow) to [red, green, blue] from 0 to 255. */
function toRgb([lightness, a, b]) {
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return linear.map((value) => {
    const clipped = Math.min(1, Math.max(0, value));
    const encoded = clipped <= 0.0031308 ? 12.92 * clipped : 1.055 * clipped ** (1 / 2.4) - 0.055;
    return Math.round(255 * encoded);
  });
}

const mix = (from, to, share) => from.map((value, i) => value + (to[i] - value) * share);

const RAMPS = {
  light: { low: [0.975, 0, 0.004], high: [0.36, -0.02, -0.13], warm: [0.5, 0.11, 0.1] },
  dark: { low: [0.24, 0, -0.012], high: [0.88, -0.06, -0.04], warm: [0.8, 0.07, 0.12] },
};

const ramp = () => RAMPS[dark() ? "dark" : "light"];

/** The colour of a share from 0 to 1. */
export const sequence = (share) =>
  toRgb(mix(ramp().low, ramp().high, Math.min(1, Math.max(0, share))));

/** The colour of a number from −1 to 1: blue above 0, ochre below, nothing at 0. */
export const diverging = (value) =>
  toRgb(mix(ramp().low, value < 0 ? ramp().warm : ramp().high, Math.min(1, Math.abs(value))));

/** A colour as CSS takes it. */
export const css = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;

/** The colour of text over a colour: the one with more contrast. */
export function ink([red, green, blue]) {
  const part = (value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  };
  const light = 0.2126 * part(red) + 0.7152 * part(green) + 0.0722 * part(blue);
  return (light + 0.05) / 0.05 > 1.05 / (light + 0.05) ? "#000" : "#fff";
}

/** The colour of a series: a number's CSS variable, or a colour as it is. */
export const series = (index) => (typeof index === "number" ? `var(--series-${index % 6})` : index);

const drawn = new Set();

addEventListener("themechange", () => {
  for (const host of drawn) {
    if (host.isConnected) host.redraw();
    else drawn.delete(host);
  }
});

/** Draw now, and again when the place changes its width or the page its colours. */
export function redrawn(host, draw) {
  host.redraw = draw;
  drawn.add(host);
  if (!host.watched) {
    host.watched = true;
    let width = host.clientWidth;
    new ResizeObserver(() => {
      if (Math.abs(host.clientWidth - width) <= 1) return;
      width = host.clientWidth;
      host.redraw();
    }).observe(host);
  }
  draw();
}

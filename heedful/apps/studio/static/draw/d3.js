// D3 as npm has it, module by module: array, format, scale, shape, selection, axis, and what they
// need. Its modules are scripts that add to one global object; they run in the order of this list.

import "../vendor/d3/d3-array-3.2.5.min.js";
import "../vendor/d3/d3-color-3.1.1.min.js";
import "../vendor/d3/d3-format-3.1.3.min.js";
import "../vendor/d3/d3-interpolate-3.0.2.min.js";
import "../vendor/d3/d3-time-3.1.1.min.js";
import "../vendor/d3/d3-time-format-4.1.1.min.js";
import "../vendor/d3/d3-scale-4.0.3.min.js";
import "../vendor/d3/d3-path-3.1.1.min.js";
import "../vendor/d3/d3-shape-3.2.1.min.js";
import "../vendor/d3/d3-selection-3.0.1.min.js";
import "../vendor/d3/d3-axis-3.0.1.min.js";

export const d3 = globalThis.d3;

// D3's brush and what it needs, for charts of which a stretch is chosen.

import { d3 } from "./d3.js";

import "../vendor/d3/d3-dispatch-3.0.2.min.js";
import "../vendor/d3/d3-timer-3.0.2.min.js";
import "../vendor/d3/d3-ease-3.0.2.min.js";
import "../vendor/d3/d3-transition-3.0.2.min.js";
import "../vendor/d3/d3-drag-3.0.1.min.js";
import "../vendor/d3/d3-brush-3.0.1.min.js";

export const { brushX } = d3;

// Sparklines of the last two minutes, from what this page has polled.

import { byId, compact, make, makeSvg, setAttr, setText } from "./dom.js";

const SPAN_S = 120;
const RATE_S = 2; // a rate is taken over about this long, or single requests look like storms
const GAP_S = 3; // a longer silence (a hidden tab, a lost gateway) is shown as a gap
const WIDTH = 480;
const HEIGHT = 56;

const SERIES = [
  { key: "running", name: "running" },
  { key: "waiting", name: "waiting" },
  { key: "refusedPerS", name: "refused per second" },
];

let points = [];
let last = null;
const charts = new Map();

export function addPoint(state) {
  const { at } = state;
  const { running, waiting, refused } = state.totals;
  if (last !== null && (at < last.at || refused < last.refused)) points = []; // the gateway was started anew
  const before = points.find((point) => at - point.at <= RATE_S + 0.25) ?? points[points.length - 1];
  const passed = before === undefined ? 0 : at - before.at;
  const refusedPerS = passed > 0.1 ? (refused - before.refused) / passed : 0;
  points.push({ at, running, waiting, refused, refusedPerS });
  points = points.filter((point) => at - point.at <= SPAN_S);
  last = { at, refused };
  for (const series of SERIES) draw(series, at);
}

function chartOf(series) {
  let chart = charts.get(series.key);
  if (chart === undefined) {
    const svg = makeSvg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    const area = makeSvg("path", { class: "area" });
    const line = makeSvg("path", { class: "stroke", "vector-effect": "non-scaling-stroke" });
    svg.append(area, line);
    const now = make("dd");
    const peak = make("span", "peak");
    const node = make("div", `trend ${series.key}`, make("dl", "", make("dt", "", series.name), now), svg, peak);
    byId("trends").append(node);
    chart = { svg, area, line, now, peak };
    charts.set(series.key, chart);
  }
  return chart;
}

function draw(series, end) {
  const chart = chartOf(series);
  const values = points.map((point) => point[series.key]);
  const peak = Math.max(...values);
  const top = Math.max(peak, 1);
  const x = (at) => (WIDTH * (1 - (end - at) / SPAN_S)).toFixed(1);
  const y = (value) => (HEIGHT - 2 - (HEIGHT - 6) * (value / top)).toFixed(1);
  let line = "";
  let area = "";
  let run = [];
  const close = () => {
    if (run.length === 0) return;
    const path = run.map((p) => `${x(p.at)} ${y(p[series.key])}`).join("L");
    line += `M${path}`;
    area += `M${x(run[0].at)} ${HEIGHT}L${path}L${x(run[run.length - 1].at)} ${HEIGHT}Z`;
    run = [];
  };
  points.forEach((point, i) => {
    if (i > 0 && point.at - points[i - 1].at > GAP_S) close();
    run.push(point);
  });
  close();
  setAttr(chart.line, "d", line);
  setAttr(chart.area, "d", area);
  const current = values[values.length - 1];
  setText(chart.now, compact(current));
  setText(chart.peak, `peak ${compact(peak)}`);
  setAttr(chart.svg, "aria-label", `${series.name} over the last two minutes: now ${compact(current)}, peak ${compact(peak)}`);
}

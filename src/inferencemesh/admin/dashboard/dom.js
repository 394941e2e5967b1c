// Small helpers over the DOM. Text from the gateway only ever enters through textContent.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function make(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

export function makeSvg(tag, attributes) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

// Writes only what differs, so that selections and screen readers are left alone.
export function setText(node, value) {
  const text = String(value);
  if (node.textContent !== text) node.textContent = text;
}

export function setClass(node, className) {
  if (node.className !== className) node.className = className;
}

export function setAttr(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

// One child per item, kept by key: made once, updated in place, put in the order of the items.
export function keyed(parent, items, keyOf, create, update) {
  const known = parent.keyedChildren ?? (parent.keyedChildren = new Map());
  const seen = new Set();
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    if (seen.has(key)) continue;
    seen.add(key);
    let child = known.get(key);
    if (child === undefined) {
      child = create(item);
      known.set(key, child);
    }
    update(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const [key, child] of known) {
    if (!seen.has(key)) {
      child.remove();
      known.delete(key);
    }
  }
}

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (n) => (typeof n === "number" ? whole.format(n) : "–");

export const compact = (n) => (typeof n === "number" ? (Math.abs(n) < 100000 ? whole.format(Math.round(n * 10) / 10) : short.format(n)) : "–");

export function duration(s) {
  if (typeof s !== "number") return "–";
  if (s < 0.9995) return `${Math.round(s * 1000)} ms`;
  if (s < 100) return `${s.toFixed(s < 10 ? 2 : 1)} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.round((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} days`;
}

export function size(bytes) {
  if (typeof bytes !== "number") return "–";
  let value = bytes;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024 || unit === "GiB") return `${unit === "B" ? value : value.toFixed(1)} ${unit}`;
    value /= 1024;
  }
  return "–";
}

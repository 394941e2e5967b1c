// Each function draws one part of the page from the state. They keep no state but what the DOM holds.

import { byId, compact, count, duration, keyed, make, setAttr, setClass, setText, size } from "./dom.js";

const TERMS = ["waiting", "running", "completed", "failed", "cancelled", "expired"];
const MAX_CELLS = 400; // more slots than this are drawn as a bar
const COLOURS = 8;
const MAX_SEGMENTS = 12; // tenants shown apart in one line; the rest are one segment
const MAX_TENANTS = 60;
const MAX_REQUESTS = 100;

export function drawTotals(state) {
  const totals = state.totals;
  const entries = [["accepted", "="], ...TERMS.map((name, i) => [name, i + 1 < TERMS.length ? "+" : ""])];
  keyed(byId("equation"), entries, (e) => e[0], term, (node, [name, sign]) => {
    setText(node.firstChild, name);
    setText(node.children[1], count(totals[name]));
    setAttr(node, "data-sign", sign);
  });
  const sum = TERMS.reduce((total, name) => total + (totals[name] ?? 0), 0);
  const fits = sum === totals.accepted;
  const note = byId("sum");
  setText(note, fits ? "✓ adds up" : `✗ the parts make ${count(sum)}: please report this`);
  setClass(note, fits ? "sum" : "sum wrong");

  const apart = [["refused", count(totals.refused)]];
  if (typeof state.rates?.completed === "number") apart.push(["completed per second", compact(state.rates.completed)]);
  keyed(byId("apart"), apart, (e) => e[0], term, (node, [name, value]) => {
    setText(node.firstChild, name);
    setText(node.children[1], value);
  });
}

function term([name]) {
  const node = make("div", `term ${name.split(" ")[0]}`, make("dt"), make("dd"));
  return node;
}

export function drawBackends(state) {
  keyed(byId("backends"), state.backends, (b) => b.name, makeBackend, updateBackend);
}

function makeBackend(backend) {
  const node = make(
    "article", "row backend",
    make("div", "who", make("h3"), make("p", "sub")),
    make("div", "cells"),
    make("div", "facts", make("p", "numbers"), make("p", "badges")),
  );
  node.querySelector(".cells").setAttribute("role", "img");
  setText(node.querySelector("h3"), backend.name);
  return node;
}

function updateBackend(node, backend) {
  const { capacity, running, draining, free } = backend.slots;
  const believed = backend.slots.believed ?? capacity;
  setText(node.querySelector(".sub"), [backend.engine, backend.url].filter(Boolean).join(" · "));
  setText(node.querySelector(".numbers"), `${count(running)} running, ${count(draining)} draining, ${count(free)} free of ${count(capacity)}`);

  const cells = [];
  const held = running + draining;
  for (let i = 0; i < Math.max(capacity, held); i++) {
    const over = i >= capacity ? " over" : "";
    if (i < running) cells.push(`cell running${over}`);
    else if (i < held) cells.push(`cell draining${over}`);
    else cells.push(i < believed ? "cell free" : "cell withheld");
  }
  drawCells(node.querySelector(".cells"), cells, running, draining, Math.max(capacity, held));
  const said = `${backend.name}: ${running} running, ${draining} draining, ${free} free of ${capacity} slots`;
  setAttr(node.querySelector(".cells"), "aria-label", said);

  const badges = [["up", backend.up ? "up" : "down", backend.up ? "good" : "bad"]];
  if (backend.cordoned) badges.push(["cordoned", "cordoned", "note"]);
  badges.push(["breaker", `breaker ${String(backend.breaker).replace("_", " ")}`, backend.breaker === "closed" ? "plain" : "bad"]);
  if (believed < capacity) badges.push(["believed", `takes ${count(believed)} for now`, "note"]);
  if (held > capacity) badges.push(["over", `${count(held - capacity)} over the new limit`, "note"]);
  if (draining > 0) badges.push(["oldest", `oldest drain ${duration(backend.slots.draining_oldest_s)}`, "note"]);
  keyed(node.querySelector(".badges"), badges, (b) => b[0], () => make("span"), (badge, [, text, kind]) => {
    setText(badge, text);
    setClass(badge, `badge ${kind}`);
  });
  setClass(node, backend.up && !backend.cordoned && backend.breaker !== "open" ? "row backend" : "row backend off");
}

function drawCells(box, classes, running, draining, total) {
  if (total > MAX_CELLS) {
    setClass(box, "cells bar");
    const parts = [["running", running], ["draining", draining], ["free", total - running - draining]];
    while (box.children.length > parts.length) box.lastChild.remove();
    while (box.children.length < parts.length) box.append(make("i"));
    parts.forEach(([kind, n], i) => {
      setClass(box.children[i], `cell ${kind}`);
      box.children[i].style.flexGrow = String(n);
    });
    return;
  }
  setClass(box, total > 96 ? "cells dense" : "cells");
  while (box.children.length > classes.length) box.lastChild.remove();
  while (box.children.length < classes.length) box.append(make("i"));
  classes.forEach((name, i) => setClass(box.children[i], name));
}

export function drawModels(state) {
  const order = new Map(state.tenants.map((tenant, i) => [tenant.name, i]));
  keyed(byId("models"), state.models, (m) => m.name, makeModel, (node, model) => updateModel(node, model, order));
}

// Keys that are no tenant's name: names are text, these are not.
const ROOM = Symbol("room");
const OTHERS = Symbol("others");
const label = (name) => (name === OTHERS ? "others" : name);

// The tenants of a line in the order of the tenants' table, so that segments do not jump about.
function inLine(byTenant, order) {
  const all = Object.entries(byTenant).filter(([, n]) => n > 0);
  const largest = all.sort((a, b) => b[1] - a[1]).slice(0, MAX_SEGMENTS);
  const rest = all.slice(MAX_SEGMENTS).reduce((total, [, n]) => total + n, 0);
  largest.sort((a, b) => (order.get(a[0]) ?? 0) - (order.get(b[0]) ?? 0));
  return rest > 0 ? [...largest, [OTHERS, rest]] : largest;
}

function makeModel(model) {
  const node = make(
    "article", "row model",
    make("div", "who", make("h3"), make("p", "sub")),
    make("div", "line", make("div", "segments"), make("ul", "by-tenant")),
    make("div", "facts", make("p", "numbers"), make("p", "badges")),
  );
  node.querySelector(".segments").setAttribute("role", "img");
  setText(node.querySelector("h3"), model.name);
  return node;
}

function updateModel(node, model, order) {
  const waiting = model.waiting;
  const limit = waiting.limit;
  const colour = (name) => (name === OTHERS ? "others" : `t${order.get(name) % COLOURS || 0}`);
  const tenants = inLine(waiting.by_tenant, order);
  setText(node.querySelector(".sub"), (model.backends ?? []).length ? `on ${model.backends.join(", ")}` : "");

  const bound = typeof limit === "number" ? Math.max(limit, waiting.total) : Math.max(waiting.total, 1);
  const segments = tenants.map(([name, n]) => [name, n, `segment ${colour(name)}`]);
  segments.push([ROOM, bound - waiting.total, "segment room"]);
  const box = node.querySelector(".segments");
  keyed(box, segments, (s) => s[0], () => make("span"), (segment, [name, n, className]) => {
    setClass(segment, className);
    segment.style.flexGrow = String(n);
    segment.hidden = n <= 0;
    setText(segment, name !== ROOM && n / bound > 0.08 ? count(n) : "");
    if (name !== ROOM) setAttr(segment, "title", `${label(name)}: ${n} waiting`);
  });
  setClass(box, limit === 0 ? "segments none-allowed" : waiting.total >= bound && waiting.total > 0 ? "segments full" : "segments");
  setAttr(box, "aria-label", `${model.name}: ${waiting.total} waiting${typeof limit === "number" ? ` of at most ${limit}` : ""}`);

  keyed(node.querySelector(".by-tenant"), tenants, (t) => t[0], ([name]) => make("li", "", make("i"), make("span"), make("b")), (item, [name, n]) => {
    setClass(item.children[0], `swatch ${colour(name)}`);
    setText(item.children[1], label(name));
    setText(item.children[2], count(n));
  });

  const of = typeof limit === "number" ? ` of at most ${count(limit)}` : "";
  setText(node.querySelector(".numbers"), limit === 0 && waiting.total === 0 ? "no line: refuses at once" : `${count(waiting.total)} waiting${of}`);
  const badges = [];
  if (waiting.total > 0) badges.push(["oldest", `oldest ${duration(waiting.oldest_s)}`, "plain"]);
  if (typeof limit === "number" && limit > 0 && waiting.total >= limit) badges.push(["full", "full", "bad"]);
  const estimate = model.estimate ?? {};
  if (typeof estimate.service_s === "number") badges.push(["service", `mean service ${duration(estimate.service_s)}`, "plain"]);
  if (typeof estimate.wait_s === "number" && waiting.total > 0) badges.push(["wait", `a newcomer waits about ${duration(estimate.wait_s)}`, "plain"]);
  keyed(node.querySelector(".badges"), badges, (b) => b[0], () => make("span"), (badge, [, text, kind]) => {
    setText(badge, text);
    setClass(badge, `badge ${kind}`);
  });
}

export function drawTenants(state) {
  const capacity = state.backends.reduce((total, b) => total + Math.max(b.slots.capacity, b.slots.running + b.slots.draining), 0);
  const cell = (className) => make("td", className);
  let shown = state.tenants;
  if (shown.length > MAX_TENANTS) {
    const busy = (tenant) => tenant.running + tenant.waiting;
    shown = [...shown].sort((a, b) => busy(b) - busy(a) || b.service - a.service).slice(0, MAX_TENANTS);
  }
  keyed(
    byId("tenants"), shown, (t) => t.name,
    () => make("tr", "", make("th"), cell("n"), cell("n"), cell("n"), cell("n"), make("td", "wide", make("div", "share", make("i")))),
    (row, tenant) => {
      const [name, weight, running, waiting, service, share] = row.children;
      setAttr(name, "scope", "row");
      setText(name, tenant.name);
      setText(weight, compact(tenant.weight ?? 1));
      setText(running, withLimit(tenant.running, tenant.max_running));
      setText(waiting, withLimit(tenant.waiting, tenant.max_waiting));
      setText(service, compact(tenant.service));
      const part = capacity > 0 ? Math.min(1, tenant.running / capacity) : 0;
      share.firstChild.firstChild.style.width = `${(part * 100).toFixed(2)}%`;
      setAttr(share.firstChild, "title", `${Math.round(part * 100)} % of all slots`);
    },
  );
  const note = byId("tenants-note");
  const left = state.tenants.length - shown.length;
  setText(note, left > 0 ? `and ${count(left)} tenants that are less busy` : state.tenants.length ? "" : "No tenant has sent anything yet.");
}

const withLimit = (n, limit) => (typeof limit === "number" ? `${count(n)} / ${count(limit)}` : count(n));

export function drawRequests(requests) {
  const shown = requests.slice(-MAX_REQUESTS).reverse();
  keyed(
    byId("requests"), shown, (r) => r.id,
    () => make("tr", "", make("th", "id"), ...Array.from({ length: 4 }, () => make("td")), ...Array.from({ length: 3 }, () => make("td", "n"))),
    (row, r) => {
      setAttr(row.children[0], "scope", "row");
      const values = [r.id, r.tenant, r.model, r.backend ?? "–", (r.step ?? r.state ?? "–").replaceAll("_", " "), duration(r.age_s), duration(r.waited_s), size(r.bytes_out)];
      values.forEach((value, i) => setText(row.children[i], value));
    },
  );
  const hidden = requests.length - shown.length;
  setText(byId("requests-note"), requests.length === 0 ? "Nothing is running or waiting." : hidden > 0 ? `and ${count(hidden)} older ones` : "");
}

// Polls the live state and draws it. Nothing here changes anything at the gateway.

import { byId, compact, duration, setText } from "./dom.js";
import { drawBackends, drawModels, drawRequests, drawTenants, drawTotals } from "./panels.js";
import { addPoint } from "./trends.js";

const EVERY_MS = 500;
const GIVE_UP_MS = 4000;
const TOKEN = "inferencemesh-admin-token";
const THEME = "inferencemesh-theme";
const THEMES = ["system", "light", "dark"];

let lastSeen = null;
let timer = null;
let polling = false;

class NeedsToken extends Error {}

async function read(path) {
  const token = sessionStorage.getItem(TOKEN);
  const response = await fetch(path, {
    headers: token ? { authorization: `Bearer ${token}` } : {},
    cache: "no-store",
    credentials: "omit",
    redirect: "error",
    signal: AbortSignal.timeout(GIVE_UP_MS),
  });
  if (response.status === 401) throw new NeedsToken();
  if (!response.ok) throw new Error(`the gateway answered ${response.status}`);
  return response.json();
}

async function poll() {
  if (polling) return;
  polling = true;
  clearTimeout(timer);
  let again = true;
  try {
    const state = await read("/api/state");
    lastSeen = performance.now();
    draw(state);
    if (byId("live").open) drawRequests((await read("/api/requests")).requests);
  } catch (error) {
    if (error instanceof NeedsToken) {
      again = false;
      askForToken();
    } else {
      unreachable();
    }
  } finally {
    polling = false;
  }
  if (again && !document.hidden) timer = setTimeout(poll, EVERY_MS);
}

function draw(state) {
  document.body.classList.remove("stale");
  byId("token-form").hidden = true;
  byId("main").hidden = false;
  drawStatus(state);
  drawTotals(state);
  addPoint(state);
  drawBackends(state);
  drawModels(state);
  drawTenants(state);
  const simulator = state.simulator === true;
  byId("simulator").hidden = !simulator;
  for (const mark of document.querySelectorAll(".sim")) mark.hidden = !simulator;
}

function drawStatus(state) {
  const reasons = state.degraded ?? [];
  const words = state.ready ? (reasons.length ? "degraded" : "ready") : "not ready";
  setStatus(words.replace(" ", "-"), words);
  const about = [`limits hold for this ${state.scope}`];
  if (state.version) about.push(`version ${state.version}`);
  if (typeof state.uptime_s === "number") about.push(`up ${duration(state.uptime_s)}`);
  if (state.simulator === true) about.push("simulator, not a GPU");
  setText(byId("about"), about.join(" · "));
  document.title = `${compact(state.totals.running)} running, ${compact(state.totals.waiting)} waiting · InferenceMesh`;
  const why = reasons.length ? reasons.join("; ") : "new requests are refused";
  if (!state.ready) banner("bad", `Not ready: ${why}.`);
  else if (reasons.length) banner("note", `Degraded: ${reasons.join("; ")}.`);
  else banner(null);
  setText(byId("foot"), `as of ${new Date(state.at * 1000).toLocaleTimeString()}, every half second from /api/state`);
}

function unreachable() {
  document.body.classList.add("stale");
  setStatus("unreachable", "unreachable");
  const since = lastSeen === null ? "" : ` What you see is ${duration((performance.now() - lastSeen) / 1000)} old.`;
  banner("bad", `The gateway does not answer.${since} Trying again.`);
}

function setStatus(state, text) {
  byId("status").dataset.state = state;
  setText(byId("status-text"), text);
}

function banner(kind, text) {
  const node = byId("banner");
  node.hidden = kind === null;
  if (kind === null) return;
  node.className = `banner ${kind}`;
  setText(node, text);
}

function askForToken() {
  const tried = sessionStorage.getItem(TOKEN) !== null;
  sessionStorage.removeItem(TOKEN);
  byId("main").hidden = true;
  banner(null);
  setStatus("locked", "token needed");
  const form = byId("token-form");
  if (form.hidden || tried) {
    form.hidden = false;
    setText(byId("token-error"), tried ? "The gateway did not accept that token." : "");
    byId("token").focus();
  }
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = byId("token");
  sessionStorage.setItem(TOKEN, field.value.trim());
  field.value = "";
  poll();
});

function setTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  setText(byId("theme"), `Theme: ${theme}`);
}

let theme = localStorage.getItem(THEME);
if (!THEMES.includes(theme)) theme = "system";
setTheme(theme);
byId("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  localStorage.setItem(THEME, theme);
  setTheme(theme);
});

byId("live").addEventListener("toggle", poll);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && byId("token-form").hidden) poll();
});
poll();

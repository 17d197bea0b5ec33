// The status page of sessiond. All that clients named or wrote is put in as text, never as markup.

const REFRESH_MS = 3000;
const PATIENCE_MS = 10000;
const LISTED = 100;
const MOST_LISTED = 5000;
const KEY = "sessiond-key";
const SVG = "http://www.w3.org/2000/svg";

const SOURCES = {
  resident: "memory",
  disk: "disk",
  fork: "another session",
  ledger: "text only",
  new: "new",
};
const STATES = { resident: "in memory", disk: "on disk", ledger: "text only" };
const HEALTH = {
  ok: ["ready", "good"],
  loading: ["loading", "busy"],
  unloaded: ["model unloaded", "idle"],
  draining: ["stopping", "busy"],
  failed: ["failed", "bad"],
};

const page = {
  key: sessionStorage.getItem(KEY) ?? "",
  status: null,
  anatomy: null,
  open: null,
  listed: LISTED,
  filter: "",
  unreachable: null,
  failure: "",
  timer: 0,
  round: 0,
};

const $ = (id) => document.getElementById(id);

// --- making elements

function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== ""));
  return node;
}

function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// --- wording numbers

const plain = new Intl.NumberFormat("en");

function count(number) {
  return number < 1e6 ? plain.format(number) : `${(number / 1e6).toPrecision(3)} M`;
}

function rough(number) {
  if (number < 1e4) return plain.format(number);
  return number < 1e6 ? `${(number / 1e3).toPrecision(3)} k` : count(number);
}

function counted(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (number >= 1024 && at < units.length - 1) {
    number /= 1024;
    at += 1;
  }
  return `${at && number < 100 ? number.toPrecision(number < 10 ? 2 : 3) : Math.round(number)} ${units[at]}`;
}

function duration(ms) {
  if (ms < 10) return `${ms.toPrecision(2)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 59500) return `${(ms / 1000).toFixed(ms < 9950 ? 1 : 0)} s`;
  const s = Math.round(ms / 1000);
  return s < 3600 ? `${Math.floor(s / 60)} min ${s % 60} s` : `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

function backIn(one) {
  if (one.state === "resident" || !one.tokens) return "now";
  const s = one.back_in_ms / 1000;
  if (s < 0.1) return "< 0.1 s";
  if (s < 9.95) return `~${s.toFixed(1)} s`;
  return s < 120 ? `~${Math.round(s)} s` : `~${Math.round(s / 60)} min`;
}

function ago(seconds) {
  if (seconds < 5) return "now";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} d ago`;
}

function percent(share) {
  const value = 100 * share;
  return `${value > 99 && value < 100 ? (Math.floor(10 * value) / 10).toFixed(1) : Math.round(value)} %`;
}

function clock(seconds, exact = false) {
  const parts = { hour: "2-digit", minute: "2-digit", hour12: false };
  return new Date(seconds * 1000).toLocaleTimeString("en-GB", exact ? { ...parts, second: "2-digit" } : parts);
}

function share(part, whole) {
  return whole ? part / whole : 0;
}

// --- asking the daemon

class NeedsKey extends Error {}
class Refused extends Error {}

function headers() {
  if (!page.key) return {};
  // A header takes bytes; a key may hold any character.
  const raw = String.fromCharCode(...new TextEncoder().encode(page.key));
  return { Authorization: `Bearer ${raw}` };
}

async function ask(path, more = {}) {
  const answer = await fetch(path, {
    headers: { ...headers(), ...more },
    cache: "no-store",
    credentials: "omit",
    redirect: "error",
    signal: AbortSignal.timeout(PATIENCE_MS),
  });
  if (answer.status === 401) throw new NeedsKey();
  const told = await answer.json();
  if (!answer.ok) throw new Refused(told?.error?.message ?? `The daemon answered ${answer.status}.`);
  return told;
}

async function anatomyOf(name) {
  if (name === null) return null;
  try {
    // Who sees the sessions of all owners is told names as owner/name.
    const [owner, own] = name.includes("/") ? name.split("/") : ["", name];
    return await ask(`v1/sessions/${encodeURIComponent(own)}/state`, owner ? { "X-Sessiond-Owner": owner } : {});
  } catch (error) {
    if (error instanceof Refused) return { failure: error.message };
    throw error;
  }
}

async function refresh() {
  clearTimeout(page.timer);
  page.round += 1;
  const round = page.round;
  const open = page.open;
  try {
    const [status, anatomy] = await Promise.all([
      ask(`v1/status?sessions=${page.listed}`),
      anatomyOf(open),
    ]);
    if (round !== page.round) return;
    Object.assign(page, { status, unreachable: null, failure: "" });
    if (open === page.open) page.anatomy = anatomy;
    show();
  } catch (error) {
    if (round !== page.round) return;
    if (error instanceof NeedsKey) return askForKey();
    if (error instanceof Refused) page.failure = error.message;
    else page.unreachable ??= Date.now() / 1000;
    showTrouble();
  }
  later();
}

function later() {
  clearTimeout(page.timer);
  if (!document.hidden) page.timer = setTimeout(refresh, REFRESH_MS);
}

// --- the key

function askForKey() {
  page.status = null;
  say($("key-wrong"), page.key ? "The daemon does not know this key." : "");
  say($("state-word"), "locked");
  $("state").className = "state";
  for (const id of ["model", "version", "updated"]) say($(id), "");
  $("alerts").replaceChildren();
  document.body.classList.remove("stale");
  $("board").hidden = true;
  $("forget").hidden = true;
  $("locked").hidden = false;
  $("key").value = "";
  $("key").focus();
}

function remember(key) {
  page.key = key;
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

// --- the board

function show() {
  $("locked").hidden = true;
  $("board").hidden = false;
  $("forget").hidden = !page.key;
  showTrouble();
  showHead();
  showTiles();
  drawings.reuse.show();
  drawings.ttft.show();
  showSessions();
}

function showHead() {
  const { health, version, now } = page.status;
  const [word, kind] = HEALTH[health.status] ?? [health.status, "busy"];
  const progress = health.status === "loading" && health.loading_progress;
  say($("state-word"), progress ? `${word} ${percent(progress)}` : word);
  $("state").className = `state ${kind}`;
  const name = el("b", {}, el("bdi", {}, health.model ?? ""));
  const facts = [health.memory_kind && `${health.memory_kind} memory`, health.codec === "whole" && "states kept whole"];
  const rest = facts.filter(Boolean).join(" · ");
  const model = health.model ? [name, rest && ` · ${rest}`] : [];
  if ($("model").textContent !== model.map((part) => part.textContent ?? part).join("")) {
    $("model").replaceChildren(...model.filter(Boolean));
    $("model").title = health.codec_detail;
  }
  say($("version"), version);
  say($("updated"), `updated ${clock(now, true)}`);
  document.title = health.status === "ok" ? "sessiond" : `sessiond: ${word}`;
}

function showTrouble() {
  const health = page.status?.health;
  const told = [];
  if (page.unreachable !== null) {
    told.push(["bad", `sessiond cannot be reached since ${clock(page.unreachable, true)}. Trying again every ${REFRESH_MS / 1000} s.`]);
  }
  if (page.failure) told.push(["bad", page.failure]);
  if (health?.unsaved_turns) {
    const number = health.unsaved_turns;
    told.push(["bad", `${counted(number, "turn")} ${number === 1 ? "is" : "are"} in memory only: the ledger cannot be written. ${health.detail}`]);
  } else if (health?.detail) {
    told.push([health.status === "failed" ? "bad" : "", health.detail]);
  }
  const stale = page.unreachable !== null;
  document.body.classList.toggle("stale", stale);
  if (stale) {
    say($("state-word"), "unreachable");
    $("state").className = "state bad";
    document.title = "sessiond: unreachable";
  }
  const wanted = told.map(([, text]) => text).join("\n");
  if ($("alerts").dataset.told !== wanted) {
    $("alerts").dataset.told = wanted;
    $("alerts").replaceChildren(...told.map(([kind, text]) => el("p", { class: `alert ${kind}` }, text)));
  }
}

function showTiles() {
  const { health, gauges, history } = page.status;
  const prompt = sum(history.spans, "prompt_tokens");
  const cached = sum(history.spans, "cached_tokens");
  const missed = sum(history.spans, "missed");
  const ranked = (rank) => gauges.ring.find((one) => one.rank === rank)?.entries ?? 0;
  const [fronts, ends] = [ranked("front"), ranked("end")];
  const fills = [
    tile("turns", "Turns", `${health.running}`, "running", share(health.running, health.max_lines), `${health.queued} waiting, ${gauges.queue} at most`),
    tile("reuse-now", "Reused", prompt ? percent(cached / prompt) : "–", prompt ? `of ${rough(prompt)} tokens` : "", share(cached, prompt),
      missed ? `${count(missed)} of ${counted(history.turns, "turn")} missed` : `${counted(history.turns, "turn")} since ${clock(history.since)}`),
    tile("context", "Context", rough(gauges.cells_used), `of ${rough(gauges.cells)} tokens`, share(gauges.cells_used, gauges.cells),
      `${health.resident_lines} of ${health.max_lines} lines`),
    tile("ring", "Snapshots in RAM", bytes(health.ring_bytes), `of ${bytes(health.ring_budget)}`, share(health.ring_bytes, health.ring_budget),
      !health.ring_entries ? "no snapshots" : `${counted(fronts, "front")}, ${counted(ends, "end")}, ${counted(Math.max(0, health.ring_entries - fronts - ends), "other")}`),
    tile("disk", "On disk", bytes(health.disk_bytes), `of ${bytes(health.disk_quota)}`, share(health.disk_bytes, health.disk_quota),
      counted(health.sessions, "session")),
    tile("speed", "Prefill", gauges.prefill_tokens_per_second ? count(Math.round(gauges.prefill_tokens_per_second)) : "–",
      gauges.prefill_tokens_per_second ? "tokens/s" : "", null,
      gauges.restore_bytes_per_second ? `restores ${bytes(gauges.restore_bytes_per_second)}/s` : "no restore measured yet"),
  ];
  if (!$("tiles").children.length) $("tiles").append(...fills.map((fill) => fill.node));
}

const tiles = new Map();

function tile(id, label, value, unit, fill, note) {
  if (!tiles.has(id)) tiles.set(id, newTile(id, label));
  const parts = tiles.get(id);
  say(parts.value, value);
  say(parts.unit, unit ? ` ${unit}` : "");
  say(parts.note, note);
  parts.meter.classList.toggle("blank", fill === null);
  if (fill !== null) {
    parts.bar.style.inlineSize = `${Math.min(100, 100 * fill)}%`;
    parts.meter.setAttribute("aria-valuenow", Math.round(100 * fill));
  }
  return parts;
}

function newTile(id, label) {
  const value = el("span", { id: `${id}-value` });
  const unit = el("small");
  const bar = el("span");
  const meter = el("div", { class: "meter", role: "meter", "aria-label": `${label}: full`, "aria-valuemin": 0, "aria-valuemax": 100 }, bar);
  const note = el("span");
  const node = el("div", { class: "tile", id }, el("dt", {}, label), el("dd", {}, el("p", { class: "value" }, value, unit), meter, el("p", { class: "note" }, note)));
  return { node, value, unit, meter, bar, note };
}

function sum(list, field) {
  return list.reduce((total, one) => total + one[field], 0);
}

// --- marks that can be told apart without their colours

function shape(source, x, y, size = 3.6) {
  const kind = `fill-${source}`;
  const s = size;
  const points = {
    fork: [[x, y - s * 1.2], [x + s * 1.15, y + s * 0.85], [x - s * 1.15, y + s * 0.85]],
    ledger: [[x, y - s * 1.3], [x + s * 1.3, y], [x, y + s * 1.3], [x - s * 1.3, y]],
    missed: [[x - s, y - s * 0.8], [x + s, y - s * 0.8], [x, y + s]],
  }[source];
  if (points) return svg("polygon", { class: kind, points: points.map((at) => at.join(",")).join(" ") });
  if (source === "disk") return svg("rect", { class: kind, x: x - s * 0.9, y: y - s * 0.9, width: s * 1.8, height: s * 1.8 });
  if (source === "new") {
    const arm = s * 1.15;
    const w = s * 0.42;
    return svg("path", { class: kind, d: `M${x - w} ${y - arm}h${2 * w}v${arm - w}h${arm - w}v${2 * w}h${w - arm}v${arm - w}h${-2 * w}v${w - arm}h${w - arm}v${-2 * w}h${arm - w}z` });
  }
  return svg("circle", { class: kind, cx: x, cy: y, r: s });
}

function icon(source) {
  return svg("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, shape(source, 5, 5, 4));
}

function swatch(kind) {
  return svg("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, svg("rect", { class: `fill-${kind}`, width: 10, height: 10, rx: 2 }));
}

function sourced(source, word = SOURCES[source] ?? source) {
  return el("span", { class: "source" }, icon(source), word);
}

// --- plots

const PAD = { left: 48, right: 10, top: 10, bottom: 20 };
const STEPS_S = [10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 14400, 21600];

class Drawing {
  // `draw(box, history)` gives {marks, layers, summary, label}; a mark is {id, x, y, told}.
  constructor(id, draw, legend) {
    this.root = $(id);
    this.plot = this.root.querySelector(".plot");
    this.readout = this.root.querySelector(".readout");
    this.draw = draw;
    this.picked = null;
    this.marks = [];
    this.root.querySelector(".legend").append(...legend);
    new ResizeObserver(() => page.status && this.show()).observe(this.plot);
    this.plot.addEventListener("pointermove", (event) => this.pick(event));
    this.plot.addEventListener("pointerdown", (event) => this.pick(event));
    this.plot.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.choose(null));
    this.plot.addEventListener("keydown", (event) => this.step(event));
  }

  show() {
    const history = page.status.history;
    const width = this.plot.clientWidth;
    const height = this.plot.clientHeight;
    if (!width) return;
    if (!history.spans.length) {
      this.marks = [];
      this.picked = null;
      say(this.readout, "");
      if (!this.plot.querySelector(".none")) this.plot.replaceChildren(el("p", { class: "none" }, "No turns since the start."));
      return;
    }
    const box = { left: PAD.left, right: width - PAD.right, top: PAD.top, bottom: height - PAD.bottom };
    const time = timeScale(box, history);
    const drawn = this.draw(box, history, time);
    this.marks = drawn.marks;
    this.summary = drawn.summary;
    this.ring = svg("g", { class: "picked", "aria-hidden": "true" });
    const picture = svg("svg", { role: "img", "aria-label": `${drawn.label} ${drawn.summary}. The arrow keys tell each value.`, tabindex: 0, viewBox: `0 0 ${width} ${height}` },
      timeAxis(box, history, time), drawn.layers, this.ring);
    const focused = this.plot.contains(document.activeElement);
    this.plot.replaceChildren(picture);
    if (focused) picture.focus();
    this.choose(this.picked);
  }

  choose(id) {
    const mark = this.marks.find((one) => one.id === id) ?? null;
    this.picked = mark?.id ?? null;
    this.ring?.replaceChildren(...(mark ? [mark.outline()] : []));
    say(this.readout, mark ? mark.told : this.summary ?? "");
  }

  pick(event) {
    const at = this.plot.getBoundingClientRect();
    const x = event.clientX - at.left;
    const y = event.clientY - at.top;
    const far = (mark) => Math.hypot(mark.x - x, mark.flat ? 0 : mark.y - y);
    const nearest = this.marks.reduce((best, mark) => (best && far(best) <= far(mark) ? best : mark), null);
    this.choose(nearest && far(nearest) < 40 ? nearest.id : null);
  }

  step(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") this.choose(null);
    if (!by || !this.marks.length) return;
    event.preventDefault();
    const at = this.marks.findIndex((mark) => mark.id === this.picked);
    const next = at < 0 ? (by > 0 ? 0 : this.marks.length - 1) : Math.min(this.marks.length - 1, Math.max(0, at + by));
    this.choose(this.marks[next].id);
  }
}

function timeScale(box, history) {
  const first = Math.min(history.since, history.spans[0].start);
  const last = history.spans.at(-1);
  const end = Math.max(history.until, last.start + last.seconds);
  return (at) => box.left + ((at - first) / (end - first || 1)) * (box.right - box.left);
}

function timeAxis(box, history, time) {
  const span = history.until - history.since;
  const most = Math.max(2, (box.right - box.left) / 70);
  const step = STEPS_S.find((seconds) => span / seconds <= most) ?? STEPS_S.at(-1);
  const shift = new Date(history.until * 1000).getTimezoneOffset() * 60;
  const parts = [svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom })];
  for (let at = Math.ceil((history.since - shift) / step) * step + shift; at <= history.until; at += step) {
    const x = time(at);
    if (x < box.left + 12 || x > box.right - 14) continue;
    parts.push(svg("line", { class: "axis", x1: x, x2: x, y1: box.bottom, y2: box.bottom + 4 }));
    parts.push(svg("text", { x, y: box.bottom + 15, "text-anchor": "middle" }, clock(at, step < 60)));
  }
  return parts;
}

function rule(box, y, label) {
  return [
    svg("line", { class: "grid", x1: box.left, x2: box.right, y1: y, y2: y }),
    svg("text", { x: box.left - 6, y: y + 4, "text-anchor": "end" }, label),
  ];
}

function drawReuse(box, history, time) {
  const height = box.bottom - box.top;
  const layers = [0, 0.5, 1].flatMap((at) => rule(box, box.bottom - at * height, percent(at)));
  const marks = [];
  for (const span of history.spans) {
    const left = Math.max(box.left, time(span.start));
    const width = Math.max(2, time(span.start + span.seconds) - left - 1);
    const memory = share(span.cached_tokens - span.restored_tokens, span.prompt_tokens);
    const disk = share(span.restored_tokens, span.prompt_tokens);
    const top = box.bottom - (memory + disk) * height;
    layers.push(svg("rect", { class: "fill-memory", x: left, width, y: box.bottom - memory * height, height: memory * height }));
    layers.push(svg("rect", { class: "fill-disk", x: left, width, y: top, height: disk * height }));
    if (!memory && !disk) layers.push(svg("rect", { class: "fill-new", x: left, width, y: box.bottom - 2, height: 2 }));
    if (span.missed) layers.push(shape("missed", left + width / 2, box.top - 4, 3));
    marks.push({
      id: span.start,
      x: left + width / 2,
      y: top,
      flat: true,
      outline: () => svg("rect", { x: left, width, y: Math.min(top, box.bottom - 2), height: Math.max(2, box.bottom - top) }),
      told: reuseTold(span, memory + disk),
    });
  }
  const prompt = sum(history.spans, "prompt_tokens");
  const summary = `${percent(share(sum(history.spans, "cached_tokens"), prompt))} of ${count(prompt)} prompt tokens in ${counted(history.turns, "turn")}`;
  return { marks, layers, summary, label: "Hit rate over time:" };
}

function reuseTold(span, rate) {
  const times = `${clock(span.start, span.seconds < 60)}–${clock(span.start + span.seconds, span.seconds < 60)}`;
  const disk = span.restored_tokens ? `, ${count(span.restored_tokens)} from disk` : "";
  const missed = span.missed ? `, ${span.missed} read old tokens again` : "";
  return `${times}: ${percent(rate)} of ${count(span.prompt_tokens)} tokens${disk}, ${counted(span.turns, "turn")}${missed}`;
}

function drawTtft(box, history, time) {
  const turns = history.shown;
  const times = turns.map((turn) => Math.max(1, turn.ttft_ms));
  let [low, high] = [around(Math.min(...times), -1), around(Math.max(...times), 1)];
  while (high / low < 10) [low, high] = [Math.max(1, around(low / 1.01, -1)), around(high * 1.01, 1)];
  const scale = (ms) => box.bottom - (Math.log(Math.max(low, ms) / low) / Math.log(high / low)) * (box.bottom - box.top);
  const ticks = [];
  for (let at = low; at <= high * 1.01; at = around(at * 1.01, 1)) ticks.push(at);
  const labelled = ticks.length > 6 ? ticks.filter((at) => Number.isInteger(Math.round(Math.log10(at) * 1e6) / 1e6)) : ticks;
  const layers = labelled.flatMap((at) => rule(box, scale(at), tickTime(at)));
  const marks = turns.map((turn, number) => {
    const x = time(turn.time);
    const y = scale(turn.ttft_ms);
    layers.push(shape(turn.source, x, y));
    return {
      id: `${turn.time}/${turn.ttft_ms}/${number}`,
      x,
      y,
      outline: () => svg("circle", { cx: x, cy: y, r: 7 }),
      told: `${clock(turn.time, true)}: ${duration(turn.ttft_ms)}, ${SOURCES[turn.source] ?? turn.source}, ${count(turn.prefilled_tokens)} of ${count(turn.prompt_tokens)} evaluated${turn.session ? `, ${short(turn.session)}` : ""}`,
    };
  });
  const sorted = [...times].sort((a, b) => a - b);
  const summary = `half within ${duration(sorted[Math.floor((sorted.length - 1) / 2)])}, the slowest ${duration(sorted.at(-1))}`;
  return { marks, layers, summary, label: "Time to first token of each turn:" };
}

// The next 1 or 3 times a power of ten at or beyond `ms`.
function around(ms, direction) {
  const power = 10 ** Math.floor(Math.log10(ms) + 1e-9);
  const steps = [0.3 * power, power, 3 * power, 10 * power].map((at) => Number(at.toPrecision(2)));
  return direction > 0 ? steps.find((at) => at >= ms * 0.9999) : steps.findLast((at) => at <= ms * 1.0001);
}

function tickTime(ms) {
  return ms < 1000 ? `${ms} ms` : `${plain.format(ms / 1000)} s`;
}

function short(name) {
  const letters = [...name];
  return `\u2068${letters.length > 32 ? `${letters.slice(0, 31).join("")}…` : name}\u2069`;
}

// --- sessions

const rows = new Map();

function matching() {
  const wanted = page.filter.trim().toLowerCase();
  if (!wanted) return page.status.sessions;
  return page.status.sessions.filter((one) =>
    [one.name, one.title, one.agent, one.group].some((text) => text?.toLowerCase().includes(wanted)));
}

function showSessions() {
  const { sessions, sessions_total: total, now } = page.status;
  const found = matching();
  say($("count"), page.filter ? `${plain.format(found.length)} of ${plain.format(total)}` : plain.format(total));
  const wanted = found.flatMap((one) => {
    const row = rows.get(one.name) ?? newRow(one.name);
    rows.set(one.name, row);
    fillRow(row, one, now);
    return one.name === page.open ? [row.node, showDetail(row, one)] : [row.node];
  });
  place($("rows"), wanted);
  const known = new Set(sessions.map((one) => one.name));
  for (const name of rows.keys()) if (!known.has(name)) rows.delete(name);
  if (page.open !== null && !known.has(page.open)) page.open = page.anatomy = null;
  $("rows").closest("table").hidden = !wanted.length;
  showNone(total, found.length);
  const rest = Math.min(total, MOST_LISTED) - sessions.length;
  $("more").hidden = rest <= 0;
  say($("more").firstElementChild, `Show ${plain.format(rest)} more`);
}

// Puts `wanted` into `parent`, moving only what is not where it belongs.
function place(parent, wanted) {
  let at = parent.firstChild;
  for (const node of wanted) {
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function showNone(total, found) {
  $("none").hidden = found > 0;
  if (found) return;
  const base = `${location.origin}/v1`;
  const words = total
    ? ["No session has this in its name, title or agent."]
    : ["No sessions yet. Point an agent at ", el("code", {}, base), ", or see ", el("code", {}, "sessiond env"), "."];
  $("none").replaceChildren(...words);
}

function newRow(name) {
  const turner = svg("svg", { class: "turner", viewBox: "0 0 8 8", "aria-hidden": "true" }, svg("path", { d: "M2 0l4 4-4 4z", fill: "currentColor" }));
  const label = el("bdi", {}, name);
  const button = el("button", { type: "button", "aria-expanded": "false", title: name }, turner, label);
  button.addEventListener("click", () => toggle(name));
  const cell = (kind, after, before) => {
    const value = el("span");
    const worded = (word) => (word ? el("span", { class: "unit" }, word) : "");
    const unit = worded(after && ` ${after}`);
    return { value, unit, node: el("td", { role: "cell", class: kind }, worded(before && `${before} `), value, unit) };
  };
  const cells = {
    agent: cell("agent"),
    title: cell("title"),
    state: cell("place"),
    tokens: cell("number", "tokens"),
    turns: cell("number", "turns"),
    rate: cell("number", "reused"),
    used: cell("number"),
    back: cell("number", "", "back"),
  };
  const tags = el("span");
  const head = el("td", { role: "cell", class: "name" }, button);
  button.append(tags);
  const node = el("tr", { role: "row", class: "row" }, head, Object.values(cells).map((one) => one.node));
  node.dataset.name = name;
  return { node, button, tags, cells, detail: null };
}

function fillRow(row, one, now) {
  const { cells, node, button } = row;
  const open = one.name === page.open;
  node.classList.toggle("open", open);
  button.setAttribute("aria-expanded", String(open));
  const told = [one.pinned && ["", "pinned"], !one.saved && ["bad", "not saved"]].filter(Boolean);
  if (row.tags.textContent !== told.map(([, word]) => word).join("")) {
    row.tags.replaceChildren(...told.map(([kind, word]) => el("span", { class: `tag ${kind}` }, word)));
  }
  say(cells.agent.value, one.agent ?? "");
  say(cells.title.value, one.title);
  cells.title.node.title = one.title;
  if (cells.state.value.dataset.state !== one.state) {
    cells.state.value.dataset.state = one.state;
    cells.state.value.replaceChildren(sourced(one.state, STATES[one.state] ?? one.state));
  }
  say(cells.tokens.value, count(one.tokens));
  say(cells.turns.value, plain.format(one.turns));
  say(cells.turns.unit, one.turns === 1 ? " turn" : " turns");
  say(cells.rate.value, one.turns ? percent(one.hit_rate) : "–");
  say(cells.used.value, ago(now - one.last_used));
  say(cells.back.value, backIn(one));
  cells.back.node.title = one.reason;
}

function toggle(name) {
  page.open = page.open === name ? null : name;
  page.anatomy = null;
  showSessions();
  refresh();
}

// --- one session laid open

function showDetail(row, one) {
  row.detail ??= newDetail();
  const { detail } = row;
  const told = page.anatomy;
  const id = `detail-${[...rows.keys()].indexOf(one.name)}`;
  detail.node.id = id;
  row.button.setAttribute("aria-controls", id);
  say(detail.name, one.name);
  detail.name.parentNode.hidden = one.name.length < 24;
  say(detail.full, [one.title, one.agent, one.policy, one.reason && `back in ${backIn(one)}: ${one.reason}`].filter(Boolean).join(" · "));
  if (!told || told.failure) {
    say(detail.wait, told?.failure ?? "Looking …");
    detail.wait.hidden = false;
    detail.body.hidden = true;
    return detail.node;
  }
  detail.wait.hidden = true;
  detail.body.hidden = false;
  const mark = JSON.stringify(told);
  if (detail.mark !== mark) {
    Object.assign(detail, { mark, told });
    detail.facts.replaceChildren(...factsOf(told));
    detail.turns.replaceChildren(...turnsOf(told.last_turns));
    detail.table.classList.toggle("missed", told.last_turns.some((turn) => turn.miss));
    detail.drawStrip();
  }
  return detail.node;
}

function newDetail() {
  const name = el("bdi");
  const full = el("p", { class: "full", dir: "auto" });
  const wait = el("p", { class: "muted" });
  const strip = el("div", { class: "strip" });
  const readout = el("p", { class: "readout", "aria-live": "polite" });
  const legend = el("ul", { class: "legend" }, [
    ["memory", "in memory (hatched: not on disk yet)"], ["disk", "on disk"], ["missing", "missing"],
  ].map(([kind, word]) => el("li", {}, swatch(kind), word)), el("li", {}, icon("missed"), "snapshot"), el("li", {}, swatch("evaluated"), "evaluated by the last turn"));
  legend.children[3].firstChild.firstChild.setAttribute("class", "fill-ring");
  const facts = el("dl", { class: "facts" });
  const turns = el("tbody");
  const heads = [["Turn", ""], ["When", "wide"], ["Source", ""], ["Cached", "number"], ["Evaluated", "number"], ["Reply", "number wide"], ["First token", "number"], ["Read again because", "why"]];
  const table = el("table", { class: "turns" }, el("caption", {}, "The last turns"),
    el("thead", {}, el("tr", {}, heads.map(([word, kind]) => el("th", { scope: "col", class: kind }, word)))), turns);
  const body = el("div", {}, strip, readout, legend, facts, el("div", { class: "scroll", role: "region", "aria-label": "The last turns", tabindex: 0 }, table));
  const node = el("tr", { role: "row", class: "detail" }, el("td", { role: "cell", colspan: 9 }, el("h3", {}, name), full, wait, body));
  const detail = { node, name, full, wait, strip, readout, facts, table, turns, body, told: null, mark: "" };
  detail.drawStrip = () => detail.told && drawStrip(detail);
  new ResizeObserver(() => detail.drawStrip()).observe(strip);
  return detail;
}

function factsOf(told) {
  const at = (where) => sum(told.blocks.filter((block) => block.where === where), "length");
  const snapshots = (where) => told.snapshots.filter((mark) => mark.where.includes(where)).length;
  const last = told.last_turn;
  const pairs = [
    ["Main line", counted(told.tokens, "token")],
    ["Front", told.front === null ? "not known" : counted(told.front, "token")],
    ["In memory", told.known ? `${count(at("memory"))} tokens` : "the model is loading"],
    ["On disk only", told.known ? `${count(at("disk"))} tokens` : ""],
    ["Missing", told.known ? `${count(at("missing"))} tokens` : ""],
    ["Snapshots", told.needs_snapshots ? `${snapshots("ring")} in RAM, ${snapshots("disk")} on disk` : told.known ? "none needed" : ""],
    ["Last turn landed at", last ? `${count(last.position)}` : "", last?.source],
    ["and evaluated", last ? `${count(last.evaluated)} of ${count(last.prompt_tokens)}` : ""],
  ];
  return pairs.filter(([, value]) => value).map(([label, value, source]) =>
    el("div", {}, el("dt", {}, label), el("dd", {}, value, source ? [", ", sourced(source)] : "")));
}

function turnsOf(turns) {
  return turns.map((turn) => el("tr", {},
    el("td", {}, `${turn.turn}${turn.line === "side" ? " (side)" : ""}`),
    el("td", { class: "wide" }, clock(turn.created)),
    el("td", {}, sourced(turn.source)),
    el("td", { class: "number" }, count(turn.cached_tokens)),
    el("td", { class: "number" }, count(turn.prefilled_tokens)),
    el("td", { class: "number wide" }, count(turn.completion_tokens)),
    el("td", { class: "number" }, duration(turn.ttft_ms)),
    el("td", { class: "why" }, turn.miss ? `${turn.miss.cause.replaceAll("_", " ")} (${count(turn.miss.tokens)})` : "")));
}

const STRIP = { side: 6, marks: 4, bar: 16, tall: 22, turn: 44, thick: 6, axis: 58, height: 76 };
const PLACES = { memory: "in memory", disk: "on disk", missing: "missing" };

function drawStrip(detail) {
  const { told, strip } = detail;
  const width = strip.clientWidth;
  if (!width || !told.tokens) return strip.replaceChildren();
  const whole = Math.max(told.tokens, told.last_turn?.prompt_tokens ?? 0);
  const x = (position) => (position / whole) * (width - 2 * STRIP.side) + STRIP.side;
  const parts = [...bars(told, x), ...ticks(told, x), ...turnLane(told, x), ...tokenAxis(whole, width, x)];
  const label = `${told.tokens} tokens: ${Object.keys(PLACES).map((where) =>
    `${sum(told.blocks.filter((block) => block.where === where), "length")} ${PLACES[where]}`).join(", ")}`;
  const picture = svg("svg", { role: "img", "aria-label": label, viewBox: `0 0 ${width} ${STRIP.height}`, height: STRIP.height }, hatch(), parts);
  picture.addEventListener("pointermove", (event) => tellStrip(detail, event, whole, width));
  picture.addEventListener("pointerdown", (event) => tellStrip(detail, event, whole, width));
  strip.replaceChildren(picture);
  say(detail.readout, stripSummary(told));
}

// Neighbours that lie at the same place are one segment, so that a million tokens are few.
function runs(blocks) {
  const found = [];
  for (const block of blocks) {
    const last = found.at(-1);
    if (last && last.where === block.where && last.on_disk === block.on_disk) last.length += block.length;
    else found.push({ ...block });
  }
  return found;
}

function bars(told, x) {
  const parts = runs(told.blocks).flatMap((run) => {
    const [left, right] = [x(run.start), x(run.start + run.length)];
    const segment = svg("rect", { class: `segment fill-${run.where}`, x: left, y: STRIP.bar, width: Math.max(0.5, right - left), height: STRIP.tall });
    Object.assign(segment.dataset, { start: run.start, length: run.length, where: run.where });
    const hatch = run.where === "memory" && !run.on_disk && right - left > 2 ? [hatching(left, right)] : [];
    return [segment, ...hatch];
  });
  const wide = told.blocks.length > 1 && x(256) - x(0) > 12;
  const seams = wide ? told.blocks.slice(1).map((block) => svg("line", { class: "seam", x1: x(block.start), x2: x(block.start), y1: STRIP.bar, y2: STRIP.bar + STRIP.tall })) : [];
  if (!told.blocks.length) parts.push(svg("rect", { class: "fill-missing", x: x(0), y: STRIP.bar, width: x(told.tokens) - x(0), height: STRIP.tall }));
  return [...parts, ...seams];
}

function hatching(left, right) {
  return svg("rect", { fill: "url(#unsaved)", x: left, y: STRIP.bar, width: right - left, height: STRIP.tall });
}

function hatch() {
  const lines = svg("rect", { class: "unsaved", width: 1.5, height: 6 });
  return svg("defs", {}, svg("pattern", { id: "unsaved", patternUnits: "userSpaceOnUse", width: 6, height: 6, patternTransform: "rotate(45)" }, lines));
}

function ticks(told, x) {
  const parts = told.snapshots.map((mark) => {
    const tick = shape("missed", x(mark.position), STRIP.marks + 5, 4);
    tick.setAttribute("class", `snapshot fill-${mark.where[0]}`);
    Object.assign(tick.dataset, { position: mark.position, where: mark.where.join(" ") });
    return tick;
  });
  if (told.front) {
    const at = x(told.front);
    const line = svg("line", { class: "front", x1: at, x2: at, y1: STRIP.bar - 3, y2: STRIP.bar + STRIP.tall + 3 });
    line.dataset.position = told.front;
    parts.push(line);
  }
  return parts;
}

function turnLane(told, x) {
  const last = told.last_turn;
  if (!last) return [];
  const piece = (kind, start, end) => {
    const lane = svg("rect", { class: `lane ${kind}`, x: x(start), y: STRIP.turn, width: Math.max(end > start ? 1.5 : 0, x(end) - x(start)), height: STRIP.thick, rx: 1 });
    Object.assign(lane.dataset, { start, length: end - start });
    return lane;
  };
  return [
    piece(`reused fill-${last.source}`, 0, last.position),
    piece("evaluated fill-evaluated", last.position, last.prompt_tokens),
    piece("replied fill-reply", last.prompt_tokens, Math.max(last.prompt_tokens, told.tokens)),
  ];
}

function tokenAxis(whole, width, x) {
  const most = Math.max(2, width / 90);
  const power = 10 ** Math.floor(Math.log10(whole / most));
  const step = Math.max(1, [1, 2, 5, 10].map((by) => by * power).find((by) => whole / by <= most));
  const parts = [];
  for (let at = 0; at <= whole; at += step) {
    const anchor = at === 0 ? "start" : x(at) > width - 30 ? "end" : "middle";
    parts.push(svg("line", { class: "axis", x1: x(at), x2: x(at), y1: STRIP.axis - 4, y2: STRIP.axis }));
    parts.push(svg("text", { x: x(at), y: STRIP.axis + 12, "text-anchor": anchor }, at === 0 ? "0 tokens" : count(at)));
  }
  return parts;
}

function stripSummary(told) {
  const last = told.last_turn;
  if (!last) return "";
  return `Turn ${last.turn} landed at ${count(last.position)} (source: ${SOURCES[last.source] ?? last.source}) and evaluated ${counted(last.evaluated, "token")}.`;
}

function tellStrip(detail, event, whole, width) {
  const box = detail.strip.getBoundingClientRect();
  const at = ((event.clientX - box.left - STRIP.side) / (width - 2 * STRIP.side)) * whole;
  const { told } = detail;
  const near = told.snapshots.find((mark) => Math.abs(mark.position - at) * width < 5 * whole && event.clientY - box.top < STRIP.bar);
  const block = told.blocks.find((one) => one.start <= at && at < one.start + one.length);
  if (near) say(detail.readout, `Snapshot at ${count(near.position)}: ${near.where.map((where) => ({ ring: "in RAM", disk: "on disk", context: "in the context" })[where]).join(", ")}`);
  else if (block) say(detail.readout, `Tokens ${count(block.start)}–${count(block.start + block.length)}: ${PLACES[block.where]}${block.where === "memory" ? (block.on_disk ? ", on disk too" : ", not on disk yet") : ""}`);
}

// --- beginning

const drawings = {
  reuse: new Drawing("reuse", drawReuse, [
    el("li", {}, swatch("memory"), "memory"),
    el("li", {}, swatch("disk"), "disk"),
    el("li", {}, icon("missed"), "old tokens read again"),
  ]),
  ttft: new Drawing("ttft", drawTtft, Object.keys(SOURCES).map((source) => el("li", {}, icon(source), SOURCES[source]))),
};

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  remember($("key").value.trim());
  refresh();
});
$("forget").addEventListener("click", () => {
  remember("");
  askForKey();
  refresh();
});
$("filter").addEventListener("input", (event) => {
  page.filter = event.target.value;
  if (page.listed < page.status.sessions_total && page.listed < MOST_LISTED) {
    page.listed = MOST_LISTED;
    refresh();
  }
  showSessions();
});
$("more").firstElementChild.addEventListener("click", () => {
  page.listed = MOST_LISTED;
  refresh();
});
$("rows").addEventListener("keydown", (event) => {
  if (event.key === "Escape" && page.open !== null) {
    const { button } = rows.get(page.open);
    toggle(page.open);
    button.focus();
  }
});
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(page.timer) : refresh()));
refresh();

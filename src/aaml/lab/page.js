// The page of `aaml lab`: what is asked of the server (or of the file that the page was exported to), and how it is drawn.
"use strict";
(() => {
const FRAMES = 200, PAGE = 50, DOTS = 100, SHOWN = 12, SCALE = 200, NOTHING = 255, SIDES = ["a", "b"];
const $ = (id) => document.getElementById(id);
const S = { episode: 0, level: 0, at: 0, row: -1, resource: 0, frame: 0, span: [0, 1], playback: {}, tile: {}, pages: {}, picked: null,
            timer: null, turn: 0, began: 0 };
let models = {};

// ---- where answers come from -----------------------------------------------------------------------------------------

let embedded = null;
async function unpack() {
  if (!AAML.packed) return;
  const bytes = Uint8Array.from(atob(AAML.packed), (c) => c.charCodeAt(0));
  const text = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  embedded = JSON.parse(text);
}
async function ask(what, params = {}, extra = {}) {
  const key = what + "?" + new URLSearchParams(params);
  if (embedded) {
    if (!(key in embedded)) throw new Error("this is not in the exported file: use `aaml lab` for all of it");
    return embedded[key];
  }
  const answer = await fetch("api/" + what + "?" + new URLSearchParams({ ...params, ...extra }));
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error);
  return body;
}

// ---- small helpers ---------------------------------------------------------------------------------------------------

function element(tag, text = "", cls = "") {
  const made = document.createElement(tag);
  if (text !== "") made.textContent = text;
  if (cls) made.className = cls;
  return made;
}
function options(select, values, chosen) {
  select.replaceChildren(...values.map((value) => { const each = element("option", value); each.value = value; return each; }));
  select.value = chosen ?? values[0];
}
const when = (s) => S.began ? new Date(1000 * (S.began + s)).toLocaleTimeString("en-GB") : seconds(s);
const axis = (s) => S.began ? 1000 * (S.began + s - 60 * new Date().getTimezoneOffset()) : s;  // dates on an axis are told as if in Greenwich
const unaxis = (x) => S.began ? x / 1000 - S.began + 60 * new Date().getTimezoneOffset() : x;
const seconds = (s) => s >= 7200 ? `${(s / 3600).toFixed(2)} h` : `${s.toFixed(1)} s`;
const short = (x) => x === null || x === undefined ? "" : Number(x).toPrecision(4).replace(/\.?0+$/, "").replace(/\.?0+e/, "e");
const pct = (x) => Number.isNaN(x) ? "none" : `${Math.round(100 * x)}%`;
function decode(text) { return Uint8Array.from(atob(text), (c) => c.charCodeAt(0)); }
const sides = () => SIDES.filter((side) => S.playback[side]);

// ---- drawing ---------------------------------------------------------------------------------------------------------

function picture(name, values, shape, x, dw) {  // values row by row, the first row on top
  const source = models[name], ND = source.data.image[0].constructor;
  source.data = { image: [new ND(values, shape)], x: [x], y: [0], dw: [dw], dh: [shape[0]] };
}
function level(tile, t, g, r) {
  const byte = tile.bytes[(t * tile.rows.length + g) * AAML.resources.length + r];
  return byte === NOTHING ? NaN : byte / SCALE;
}
function drawWindow() {
  const R = AAML.resources.length, tiles = sides().map((side) => S.tile[side]);
  // Resources that no node has are not shown; the colours reach as far as most of what there is.
  S.shown = AAML.resources.map((_, r) => r).filter((r) => tiles.some((tile) => tile.bytes.some((byte, place) => place % R === r && byte !== NOTHING)));
  const bytes = tiles.flatMap((tile) => Array.from(tile.bytes.filter((byte, place) => place % R < 2 && byte !== NOTHING))).sort((a, b) => a - b);
  const most = (bytes[Math.floor(0.995 * bytes.length)] ?? SCALE) / SCALE, high = [0.1, 0.25, 0.5, 0.75].find((each) => each >= most) ?? 1;
  for (const side of sides()) {
    const tile = S.tile[side], G = tile.rows.length, values = new Float32Array(G * FRAMES);
    for (let g = 0; g < G; g++) for (let t = 0; t < FRAMES; t++)
      values[(G - 1 - g) * FRAMES + t] = level(tile, t, g, S.resource);
    for (const which of ["now", "past"]) {
      const plot = models[`${which}_${side}`];
      models[`${which}_${side}_colours`].setv({ high, high_color: high < 1 ? null : "#b3001b" });
      plot.y_range.setv({ start: 0, end: G });
      const axis = plot.left[0] ?? plot.yaxis;
      if (which === "now" && axis.ticker) {
        const few = G <= 32, ticks = few ? tile.rows.map((_, g) => G - 1 - g + 0.5) : [];
        axis.ticker.ticks = ticks;
        axis.major_label_overrides = new Map(ticks.map((tick, g) => [tick, tile.rows[g]]));
      }
      plot.height = Math.max(190, Math.min(560, 70 + G * (G <= 32 ? 16 : 5)));
    }
    const columns = models[`now_${side}`].below[0];
    columns.ticker.ticks = S.shown.map((_, place) => place + 0.5);
    columns.major_label_overrides = new Map(S.shown.map((r, place) => [place + 0.5, AAML.resources[r]]));
    models[`now_${side}`].x_range.setv({ start: 0, end: S.shown.length });
    models[`past_${side}`].title.text = `${AAML.resources[S.resource]} over time`;
    picture(`past_${side}_data`, values, [G, FRAMES], axis(tile.start_s), Math.max(axis(tile.end_s) - axis(tile.start_s), 1e-9));
    const time = tile.pending.map((_, t) => axis(tile.start_s + (tile.end_s - tile.start_s) * t / (FRAMES - 1)));
    models[`queue_${side}_data`].data = { time, value: tile.pending };
    models[`spread_${side}_data`].data = { time, value: tile.spread };
    const card = document.querySelector(`.card.side-${side} small`);
    card.textContent = `${S.playback[side].status.decisions.toLocaleString("en")} decisions, ` +
      `${tile.nodes ? "a row a node" : "a row a group of nodes: click one to see its nodes"}`;
  }
  const first = S.tile[sides()[0]];
  models.clock.setv({ start: axis(first.start_s), end: Math.max(axis(first.end_s), axis(first.start_s) + 1e-9) });
  drawNow();
}
function now() {
  const tile = S.tile[sides()[0]];
  return tile.start_s + (tile.end_s - tile.start_s) * S.frame / (FRAMES - 1);
}
function firstLoaded(tile) {  // the first moment at which nodes are used nearly as they are most of the time
  const used = Array.from({ length: FRAMES }, (_, t) => {
    const levels = tile.rows.map((_, g) => level(tile, t, g, S.resource)).filter((each) => !Number.isNaN(each));
    return levels.reduce((sum, each) => sum + each, 0) / Math.max(levels.length, 1);
  });
  const usual = [...used].sort((a, b) => a - b)[FRAMES >> 1];
  return used.findIndex((each) => each >= 0.8 * usual);
}
function drawNow() {
  const R = S.shown.length;
  for (const side of sides()) {
    const tile = S.tile[side], G = tile.rows.length, values = new Float32Array(G * R);
    for (let g = 0; g < G; g++) S.shown.forEach((r, place) => { values[(G - 1 - g) * R + place] = level(tile, S.frame, g, r); });
    picture(`now_${side}_data`, values, [G, R], 0, R);
    models[`past_cursor_${side}`].location = axis(now());
    models[`now_${side}`].title.text = `now: ${tile.pending[S.frame]} ${tile.pending[S.frame] === 1 ? "pod waits" : "pods wait"}, ` +
      `${tile.there[S.frame]} nodes` + (tile.dollars ? `, $${tile.dollars[S.frame].toFixed(2)} an hour` : "");
    listDecisions(side);
  }
  for (const name of ["queue_cursor", "spread_cursor"]) models[name].location = axis(now());
  $("slider").value = S.frame;
  nameWaiting();
  $("clock").textContent = when(now()) + (S.level ? `, window 1/${2 ** S.level}` : "");
}
function frameAt(time) {
  const tile = S.tile[sides()[0]];
  return Math.round(Math.max(0, Math.min(1, (time - tile.start_s) / Math.max(tile.end_s - tile.start_s, 1e-9))) * (FRAMES - 1));
}
function readout(side, x, y, which) {
  const tile = S.tile[side], g = tile.rows.length - 1 - Math.floor(y);
  if (!(g in tile.rows)) return "";
  let t = S.frame;
  if (which === "past") t = Math.round((x - tile.start_s) / (tile.end_s - tile.start_s) * (FRAMES - 1));
  if (!(t >= 0 && t < FRAMES)) return "";
  const at = which === "past" ? ` at ${when(tile.start_s + (tile.end_s - tile.start_s) * t / (FRAMES - 1))}` : "";
  return tile.rows[g] + at + ": " + S.shown.map((r) => `${AAML.resources[r]} ${pct(level(tile, t, g, r))}`).join(", ");
}

// ---- replays ---------------------------------------------------------------------------------------------------------

async function open() {
  const turn = ++S.turn, episode = AAML.episodes[S.episode];
  Object.assign(S, { playback: {}, tile: {}, pages: {}, level: 0, at: 0, row: -1, picked: null });
  $("why").replaceChildren(element("h2", "Why this node?"), element("p", "Click a decision.", "hint"));
  const two = $("policy_b").value !== "(nobody)";
  for (const id of ["sides", "lists"]) $(id).classList.toggle("single", !two);
  for (const card of document.querySelectorAll(".side-b")) card.hidden = !two;
  for (const name of ["queue_b_data", "spread_b_data"]) models[name].data = { time: [], value: [] };
  for (const side of two ? SIDES : ["a"])
    for (const title of document.querySelectorAll(`.side-${side} .policy`)) title.textContent = $(`policy_${side}`).value;
  const chosen = two ? SIDES : ["a"], began = performance.now();
  for (;;) {
    const playbacks = {};
    for (const side of chosen)
      playbacks[side] = await ask("playback", { episode: S.episode, nodes: $("nodes").value, seed: $("seed").value, policy: $(`policy_${side}`).value });
    if (turn !== S.turn) return;
    S.playback = playbacks;
    S.began = playbacks.a.status.began_unix_s ?? 0;
    const all = chosen.map((side) => playbacks[side].status), ready = all.every((each) => each.decisions > 0 || each.done);
    const wrong = all.find((each) => each.error);
    if (wrong) { $("state").textContent = wrong.error; $("state").className = "error"; return; }
    $("state").className = "hint";
    if (ready) {
      S.span = [Math.min(...all.map((each) => each.span_s[0])), Math.max(...all.map((each) => each.span_s[1]))];
      const first = !S.tile.a, at = first || S.frame === FRAMES - 1 ? Infinity : now();  // whoever looks at the end stays there
      S.pages = {};
      await load();
      if (turn !== S.turn) return;
      if (episode.live) { S.frame = frameAt(at); drawNow(); }
    }
    const playing = all.some((each) => !each.done);
    if (!playing && !episode.live && S.frame === 0 && S.timer === null) { S.frame = firstLoaded(S.tile.a); drawNow(); }
    $("state").textContent = !playing ? "" : episode.live ? "live" : `playing the runs: ${all.map((each) => each.decisions.toLocaleString("en")).join(" and ")} decisions so far`;
    if (!playing) { document.body.dataset.ready = "yes"; return; }
    if (ready) document.body.dataset.ready = "partly";
    await new Promise((wake) => setTimeout(wake, performance.now() - began < 3000 ? 300 : 1000));
    if (turn !== S.turn) return;
  }
}
async function load() {  // the window of time that is looked at
  const turn = S.turn, width = (S.span[1] - S.span[0]) / 2 ** S.level, start = S.span[0] + S.at * width, tiles = {};
  await Promise.all(sides().map(async (side) => {
    const where = { playback: S.playback[side].key, level: S.level, at: S.at, row: S.row };
    const tile = await ask("window", where, { start, end: start + width });
    tile.bytes ??= decode(tile.use);
    tiles[side] = tile;
  }));
  if (turn !== S.turn) return;
  S.tile = tiles;
  $("out").disabled = S.level === 0;
  $("all").hidden = S.row < 0;
  drawWindow();
}
async function zoom(change) {
  const time = now();
  S.level = Math.max(0, Math.min(AAML.levels, S.level + change));
  const width = (S.span[1] - S.span[0]) / 2 ** S.level;
  S.at = Math.max(0, Math.min(2 ** S.level - 1, Math.floor((time - S.span[0]) / width)));
  await load();
  S.frame = frameAt(time);
  drawNow();
}
async function step() {
  if (S.frame < FRAMES - 1) S.frame += 1;
  else if (S.at < 2 ** S.level - 1) { S.at += 1; await load(); S.frame = 0; }
  else return play(false);
  drawNow();
}
function play(on = S.timer === null) {
  clearInterval(S.timer);
  S.timer = null;
  if (on) {
    if (S.frame === FRAMES - 1 && S.at === 2 ** S.level - 1) { S.frame = 0; if (S.at) { S.at = 0; load(); } }
    S.timer = setInterval(step, 80);
  }
  $("play").textContent = on ? "\u23F8" : "\u25B6";
}

// ---- decisions -------------------------------------------------------------------------------------------------------

async function page(side, number) {
  const key = `${side}-${number}`;
  return S.pages[key] ??= ask("decisions", { playback: S.playback[side].key, page: number }).catch((error) => { S.pages[key] = undefined; throw error; });
}
async function listDecisions(side) {
  const done = S.tile[side].decided[S.frame], first = Math.max(0, Math.min(done - SHOWN / 2, S.playback[side].status.decisions - SHOWN));
  const box = document.querySelector(`#lists .side-${side}`), turn = S.turn, frame = S.frame;
  let rows = [];
  try {
    for (let number = Math.floor(first / PAGE); number <= Math.floor((first + SHOWN - 1) / PAGE); number++)
      rows = rows.concat(await page(side, number));
  } catch (error) { box.querySelector("tbody").replaceChildren(element("tr", error.message)); return; }
  if (turn !== S.turn || frame !== S.frame) return;
  rows = rows.filter((row) => row[0] >= first && row[0] < first + SHOWN);
  const live = AAML.episodes[S.episode].live;  // nobody tells there how many nodes were feasible
  const by = live || rows.some((row) => row[6]);
  box.querySelector("thead").replaceChildren(line(["", "time", "pod", "node", ...(live ? [] : ["feasible"]), ...(by ? ["by"] : [])], "th"));
  box.querySelector("tbody").replaceChildren(...rows.map((row) => {
    const made = line([row[0], when(row[1]), row[2], row[3] || row[5], ...(live ? [] : [row[4] || ""]), ...(by ? [row[6]] : [])]);
    made.classList.toggle("chosen", S.picked ? S.picked.side === side && S.picked.number === row[0] : row[0] === done - 1);
    made.onclick = () => goTo(side, row);
    return made;
  }));
}
function line(cells, tag = "td") {
  const row = element("tr");
  row.append(...cells.map((cell) => element(tag, String(cell), typeof cell === "number" || cell === "feasible" ? "number" : "")));
  return row;
}
async function nameWaiting() {  // which pods have no node at this moment, and why
  const box = $("waiting"), turn = S.turn, frame = S.frame;
  if (embedded || S.timer !== null || S.asking) return;
  S.asking = true;
  try {
    const said = await ask("waiting", { playback: S.playback.a.key }, { at: now() }), live = AAML.episodes[S.episode].live;
    if (turn !== S.turn) return;
    $("promise").hidden = !said.promise;
    $("promise").textContent = said.promise;
    box.hidden = said.pods.length === 0;
    const of = said.pods.length < said.pending ? `, ${said.pods.length} of ${said.pending}` : "";
    box.querySelector("h2").textContent = (live ? "Pods that wait now" : `Pods that wait, under ${$("policy_a").value}`) + of;
    box.querySelector("thead").replaceChildren(line(["pod", "since", ...(live ? ["scheduler"] : ["attempts"]), "why"], "th"));
    box.querySelector("tbody").replaceChildren(...said.pods.map(([pod, since, tries, by, why]) =>
      line([pod, when(since), live ? by : tries, why])));
  } catch (error) { box.hidden = true; } finally { S.asking = false; }
  if (frame !== S.frame && turn === S.turn) nameWaiting();  // the slider went on meanwhile
}
async function go(change) {  // to another decision of the left policy
  const last = S.playback.a.status.decisions - 1, from = S.picked?.side === "a" ? S.picked.number : S.tile.a.decided[S.frame] - 1;
  const number = Math.max(0, Math.min(last, from + change)), [row] = (await page("a", Math.floor(number / PAGE))).filter((each) => each[0] === number);
  await goTo("a", row);
}
async function goTo(side, [number, time_s]) {  // the moment of a decision, and why it was made
  play(false);
  const width = (S.span[1] - S.span[0]) / 2 ** S.level, at = Math.min(2 ** S.level - 1, Math.max(0, Math.floor((time_s - S.span[0]) / Math.max(width, 1e-9))));
  if (at !== S.at) { S.at = at; await load(); }
  S.frame = Math.max(0, Math.min(FRAMES - 1, Math.ceil((time_s - S.tile.a.start_s) / Math.max(width, 1e-9) * (FRAMES - 1))));
  await explain(side, number);
}
async function explain(side, number) {
  S.picked = { side, number };
  drawNow();
  const other = side === "a" ? "b" : "a", box = $("why");
  const params = { playback: S.playback[side].key, decision: number };
  if (S.playback[other]) params.beside = S.playback[other].key;
  try {
    const said = await ask("explain", params);
    if (S.picked?.side === side && S.picked.number === number) box.replaceChildren(...explanation(said));
  } catch (error) { box.replaceChildren(element("h2", "Why this node?"), element("p", error.message, "hint")); }
}
function* explanation({ own, others, scores_of, by }) {
  yield element("h2", `${own.pod} (${own.asks}) \u2192 ${own.node || "left pending"}`);
  const facts = element("ul", "", "plain"), add = (text) => facts.append(element("li", text));
  add(`decision ${own.number} of ${own.policy}${by ? ` (by ${by})` : ""} at ${when(own.time_s)}; ${own.feasible} of ${own.of} nodes are feasible`);
  for (const [filter, reason, count] of own.refused) add(`${filter} refuses ${count}: ${reason}`);
  const its = scores_of === own.policy ? "its score" : `its score by ${scores_of}`;
  if (own.margin !== null) add(own.margin === 0 ? `${its} is level with that of ${own.second}` :
    `${its} is ${short(Math.abs(own.margin))} ${own.margin > 0 ? "above" : "below"} the best other node's, ${own.second}`);
  for (const each of others) add(`${each.policy} would take ${each.here || "none"} in this very state` +
    (each.in_its_run ? `; in its own run the pod went to ${each.in_its_run}` : ""));
  for (const note of own.notes) add(note);
  yield facts;
  if (own.scores) {
    const names = Object.keys(own.parts).slice(0, 8), most = {};
    for (const name of names) {
      const values = [...own.parts[name], ...own.devices.map(([, , , parts]) => parts[name])];
      most[name] = Math.max(...values.map((value) => Math.abs(value ?? 0)), 1e-12);
    }
    const table = element("table"), head = element("thead"), body = element("tbody");
    const titles = element("tr");
    titles.append(element("th", "node"), element("th", "score", "number"), ...names.map((name) => element("th", name, "number")), element("th", own.refused.length ? "refused by" : ""));
    head.append(titles);
    const line = (label, score, part, kind = "", refusal = null) => {
      const row = element("tr", "", kind);
      row.append(element("td", label), element("td", short(score), "number"));
      for (const name of names) {
        const value = part(name), cell = element("td", refusal ? "" : short(value), "cell");
        if (!refusal) {
          const bar = element("i", "", value < 0 ? "less" : "");
          bar.style.width = `${90 * Math.abs(value ?? 0) / most[name]}%`;
          cell.append(bar);
        }
        row.append(cell);
      }
      row.append(element("td", refusal ? refusal.join(": ") : "", "hint"));
      body.append(row);
    };
    own.nodes.forEach((node, place) => {
      line(node, own.scores[place], (name) => own.parts[name][place], place === own.chosen ? "chosen" : "", own.mask[place] ? null : own.refusals[place]);
      for (const [at, device, score, parts] of own.devices)
        if (at === place) line(`\u2003GPU ${device}`, score, (name) => parts[name], "device");
    });
    table.append(head, body);
    const scroll = element("div", "", "scroll tall");
    scroll.append(table);
    yield scroll;
    if (own.devices.length) yield element("p", "Below a node: its GPU devices that the pod may share; the node has the score of the best.", "hint");
    const hidden = Object.keys(own.parts).length - names.length;
    if (own.parts_are) yield element("p", `Columns: ${own.parts_are}. The first tell the chosen node most from the second` +
      (hidden > 0 ? `; ${hidden} smaller ones are not shown.` : "."), "hint");
  }
  const times = Object.entries(own.seconds).map(([name, s]) => `${name} ${short(1000 * s)} ms`).join(", ");
  if (times) yield element("p", `Time: ${times}.`, "hint");
}

// ---- the other tabs --------------------------------------------------------------------------------------------------

async function learning() {
  const curves = await ask("curves"), names = Object.keys(curves);
  if (!embedded && names.join() !== AAML.curves.join()) {
    if (!$("learning").hidden) return location.reload();  // their figures come with the page
    $("news").textContent = "new curves";
  }
  AAML.curves.forEach((name, number) => {
    if (!models[`curve_${number}_data`]) return;  // a bound of an interval
    const runs = Object.entries(curves[name] ?? {}), colour = runs.map(([run]) => AAML.colours[run]);
    const few = runs.filter(([, [steps]]) => steps.length <= DOTS);
    models[`curve_${number}_data`].data = { xs: runs.map(([, [steps]]) => steps), ys: runs.map(([, [, values]]) => values),
      run: runs.map(([run]) => run), colour };
    models[`curve_${number}_points`].data = { x: few.flatMap(([, [steps]]) => steps), y: few.flatMap(([, [, values]]) => values),
      run: few.flatMap(([run, [steps]]) => steps.map(() => run)), colour: few.flatMap(([run, [steps]]) => steps.map(() => AAML.colours[run])) };
    if (models[`curve_${number}_band`]) {
      const [low, high] = ["low", "high"].map((bound) => runs.map(([run]) => (curves[name.replace("mean", bound)] ?? {})[run] ?? [[], []]));
      models[`curve_${number}_band`].data = { xs: low.map(([steps], r) => [...steps, ...high[r][0].toReversed()]),
        ys: low.map(([, values], r) => [...values, ...high[r][1].toReversed()]), colour };
    }
  });
  $("none").hidden = names.length > 0;
  document.querySelector("#learning .legend").replaceChildren(...Object.entries(AAML.colours).map(([run, colour]) => {
    const made = element("span"), mark = element("i");
    mark.style.background = colour;
    made.append(mark, run);
    return made;
  }));
  if (!embedded) setTimeout(learning, 2000);
}
function show(id) {
  for (const section of document.querySelectorAll("main > section")) section.hidden = section.id !== id;
  for (const tab of document.querySelectorAll(".tabs button")) tab.setAttribute("aria-selected", tab.dataset.id === id);
  if (id === "learning") $("news").textContent = "";
  if (location.hash !== "#" + id) history.replaceState(null, "", "#" + id);
  window.dispatchEvent(new Event("resize"));
}

// ---- the beginning ---------------------------------------------------------------------------------------------------

function choose() {  // what can be chosen of the episode
  const episode = AAML.episodes[S.episode];
  $("which").hidden = episode.live;
  options($("nodes"), episode.nodes);
  options($("seed"), episode.seeds);
  options($("policy_a"), episode.policies);
  options($("policy_b"), [...episode.policies, "(nobody)"], episode.policies[1] ?? "(nobody)");
}
async function begin() {
  await unpack();
  while (!window.Bokeh || !Bokeh.documents.length) await new Promise((wake) => setTimeout(wake, 20));
  for (const bokeh of Bokeh.documents)
    for (const model of bokeh._all_models.values()) if (model.name) models[model.name] = model;
  const tabs = [["cluster", AAML.episodes.length], ["learning", AAML.has.learning], ["comparison", AAML.has.comparison], ["shadow", AAML.has.shadow]]
    .filter(([, there]) => there).map(([id]) => id);
  document.querySelector(".tabs").replaceChildren(...tabs.map((id) => {
    const tab = element("button", $(id).dataset.title);
    tab.dataset.id = id;
    tab.setAttribute("role", "tab");
    tab.onclick = () => show(id);
    return tab;
  }));
  if (AAML.episodes.length) {
    options($("resource"), AAML.resources);
    $("episode").replaceChildren(...AAML.episodes.map((each, place) => { const made = element("option", each.name); made.value = place; return made; }));
    choose();
    $("episode").onchange = () => { S.episode = Number($("episode").value); choose(); open(); };
    for (const id of ["nodes", "seed", "policy_a", "policy_b"]) $(id).onchange = open;
    $("resource").onchange = () => { S.resource = AAML.resources.indexOf($("resource").value); drawWindow(); };
    $("slider").oninput = () => { S.frame = Number($("slider").value); S.picked = null; drawNow(); };
    $("play").onclick = () => play();
    $("back").onclick = () => go(-1);
    $("next").onclick = () => go(1);
    $("in").onclick = () => zoom(1);
    $("out").onclick = () => zoom(-1);
    $("all").onclick = () => { S.row = -1; load(); };
    for (const side of SIDES) for (const which of ["now", "past"]) {
      const plot = models[`${which}_${side}`], box = document.querySelector(`.card.side-${side} .readout`);
      plot.on_event("mousemove", (event) => { if (S.tile[side]) box.textContent = readout(side, which === "past" ? unaxis(event.x) : event.x, event.y, which); });
      plot.on_event("tap", async (event) => {
        const tile = S.tile[side], g = tile.rows.length - 1 - Math.floor(event.y);
        if (!tile.nodes && g in tile.rows && !embedded) { S.row = g; await load(); }
        else if (which === "past") { S.frame = Math.max(0, Math.min(FRAMES - 1, Math.round((unaxis(event.x) - tile.start_s) / (tile.end_s - tile.start_s) * (FRAMES - 1)))); drawNow(); }
      });
    }
    document.addEventListener("keydown", (event) => {
      if (["SELECT", "INPUT"].includes(event.target.tagName) || $("cluster").hidden) return;
      if (event.key === " ") { event.preventDefault(); play(); }
      if (event.key === "ArrowRight") go(1);
      if (event.key === "ArrowLeft") go(-1);
    });
    open().catch((error) => { $("state").textContent = error.message; $("state").className = "error"; });
  }
  const first = AAML.has.learning && !AAML.has.comparison ? "learning" : tabs[0];  // of trainings their curves
  show(tabs.includes(location.hash.slice(1)) ? location.hash.slice(1) : first);
  if (AAML.has.learning) learning();
  document.body.dataset.begun = "yes";
}
begin();
})();

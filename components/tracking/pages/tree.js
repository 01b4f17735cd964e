// How a tree is drawn, on every page: a picture, and an outline of its turns.
const by = id => document.getElementById(id);
const make = (kind, props = {}, ...inside) => { const e = document.createElement(kind); Object.assign(e, props); e.append(...inside); return e; };
const drawn = (kind, props, ...inside) => { const e = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const k in props) e.setAttribute(k, props[k]); e.append(...inside); return e; };
const two = x => x.toFixed(2), signed = x => (x > 0 ? "+" : "") + two(x), won = n => n.reward > .5;
const address = hash => { try { history.replaceState(null, "", hash); } catch { /* a sandbox has no history */ } };

for (const [k, t] of forest.trees.entries()) {
  t.at = k;
  t.leaves = t.wins + t.losses + t.unscored;
  t.children = t.nodes.map(() => []);
  t.nodes.forEach((n, i) => n.parent >= 0 && t.children[n.parent].push(i));
}

function colour(v) {  // orange, grey, blue: told apart by colour-blind eyes as well
  if (v === undefined) return "#b9c0c7";
  const ends = v < .5 ? [[238, 139, 62], [201, 205, 209]] : [[201, 205, 209], [92, 164, 226]], t = v < .5 ? 2 * v : 2 * v - 1;
  return `rgb(${ends[0].map((a, i) => Math.round(a + (ends[1][i] - a) * t))})`;
}

function facts(n, isRoot) {
  const belief = (v, sd) => two(v) + (sd ? ` ± ${two(sd)}` : ""), parts = [];
  if (n.reward !== undefined) parts.push(`reward ${+n.reward.toFixed(3)}`);
  if (n.v !== undefined) parts.push(`v̂ ${belief(n.v, n.sd)}` + (n.after ? `, after ${n.after[2]} rollout${n.after[2] > 1 ? "s" : ""} ${belief(n.after[0], n.after[1])}` : ""));
  if (n.granted) parts.push(`granted ${n.granted} ${isRoot ? "factual rollout" : "continuation"}${n.granted > 1 ? "s" : ""}` + (n.chance === undefined ? "" : ` for ${two(n.chance)}`));
  if (n.value !== undefined && !n.stop) parts.push(`V ${two(n.value)}`);
  if (n.advantage !== undefined) parts.push(`advantage ${signed(n.advantage)}`);
  if (n.tokens) parts.push(`${n.tokens} tokens`);
  if (n.same !== undefined) parts.push("same history as an earlier rollout");
  if (n.status) parts.push(n.status);
  if (n.error) parts.push(n.error);
  return parts.join(" · ");
}

function verdict(n) {
  if (!n.stop) return n.flips?.[0] ? make("b", {className: "flip", textContent: ` ⇄ flipped by ${n.flips[0]} of ${n.flips[1]}`}) : "";
  return make("b", {className: n.reward === undefined ? "" : won(n) ? "good" : "bad", textContent:
    ` ${n.reward === undefined ? "?" : won(n) ? "✓" : "✗"} ${n.stop.replaceAll("_", " ")}${n.answer ? ` “${n.answer}”` : ""}${n.flipped ? " ⇄" : ""}`});
}

function summary(t) {
  return `prompt ${t.prompt} · ${t.wins} of ${t.wins + t.losses} rollouts succeed` + (t.unscored ? `, ${t.unscored} unscored` : "") +
    (t.flips ? ` · ${t.flips} flipped` : "") +
    (t.surprise === undefined ? "" : ` · surprise ${two(t.surprise)} · contrast ${two(t.contrast)}`) + (t.rule ? ` · ${t.rule}` : "");
}

const goldOf = t => t.gold ? [make("p", {className: "gold"}, "gold answer ", make("b", {textContent: t.gold}))] : [];

function tokens(t, i) {  // what was sampled, token by token: the less likely, the darker; at the prompt, its exact text
  const n = t.nodes[i];
  if (i === 0) return make("pre", {textContent: forest.head + t.exact});
  return make("pre", {}, ...n.pieces.map((text, k) => {
    const p = n.logprobs[k];
    if (p === null) return make("span", {className: "given", textContent: text});
    return make("span", {className: "drawn", textContent: text, title: `log p ${two(p)}, p ${Math.exp(p).toFixed(3)}`,
      style: `background:rgb(238 139 62 / ${(.85 * (1 - Math.exp(p))).toFixed(2)})`});
  }));
}

function grow(t, picked = () => {}) {  // one turn of a tree is marked, in the picture and in the outline
  const places = t.nodes.map(() => ({}));
  const grown = {turn: 0, parts: [make("div", {className: "picture"}, picture(t, places, choose)), make("ul", {className: "turns"}, outline(t, 0, places, choose))],
    step(by_) { if (places[grown.turn + by_]) mark(grown.turn + by_, true); }, open() { places[grown.turn].open?.(); }};
  function choose(i, scroll) { picked(); mark(i, scroll); }
  function mark(turn, scroll) {
    grown.turn = turn;
    places.forEach((p, i) => { p.box.classList.toggle("on", i === turn); p.g.setAttribute("class", i === turn ? "node on" : "node"); });
    if (scroll) places[turn].box.scrollIntoView({block: "nearest"});
  }
  mark(0);
  return grown;
}

function outline(t, i, places, choose) {
  const n = t.nodes[i], box = make("div", {onclick: () => choose(i)});
  if (i === 0) box.append(make("b", {textContent: "prompt "}));
  if (n.thought) box.append(make("span", {className: "thought", textContent: n.thought + " "}));
  if (n.action) box.append(make("span", {textContent: n.action + " "}));
  if (n.observation !== undefined && !n.stop) box.append(make("span", {className: "seen", textContent: n.observation}));
  box.append(verdict(n), " ", make("span", {className: "facts", textContent: facts(n, i === 0)}));
  if (n.pieces || (i === 0 && t.exact !== undefined)) {
    places[i].open = () => box.lastChild.tagName === "PRE" ? box.lastChild.remove() : box.append(tokens(t, i));
    box.append(" ", make("button", {textContent: i ? "tokens" : "exact prompt", onclick: e => { e.stopPropagation(); places[i].open(); }}));
  }
  places[i].box = box;
  const item = make("li", {className: n.origin === "counterfactual" ? "new" : ""}, box);
  if (t.children[i].length) item.append(make("ul", {}, ...t.children[i].map(c => outline(t, c, places, choose))));
  return item;
}

function picture(t, places, choose) {  // leaves share the height evenly, turns the width
  const x = [], y = []; let leaf = 0;
  (function lay(i, depth) {
    x[i] = 16 + depth * 62;
    t.children[i].forEach(c => lay(c, depth + 1));
    y[i] = t.children[i].length ? (y[t.children[i][0]] + y[t.children[i].at(-1)]) / 2 : 16 + 20 * leaf++;
  })(0, 0);
  const width = Math.max(...x) + 48, height = 12 + 20 * Math.max(1, leaf);
  const svg = drawn("svg", {width, height, viewBox: `0 0 ${width} ${height}`, role: "img", class: "tree"});
  svg.setAttribute("aria-label", "the tree: turns from left to right, leaves at the right");
  t.nodes.forEach((n, i) => {
    if (n.parent >= 0) {
      const [a, b, c, d] = [x[n.parent], y[n.parent], x[i], y[i]], mid = (a + c) / 2;
      svg.append(drawn("path", {d: `M${a} ${b}C${mid} ${b} ${mid} ${d} ${c} ${d}`, class: n.origin === "counterfactual" ? "new" : ""}));
    }
  });
  t.nodes.forEach((n, i) => {
    const g = drawn("g", {class: "node"}), end = n.stop !== undefined;
    if (n.flips?.[0]) g.append(drawn("circle", {cx: x[i], cy: y[i], r: 10, class: "ring"}));
    g.append(end ? drawn("rect", {x: x[i] - 6, y: y[i] - 6, width: 12, height: 12, rx: 2, fill: n.reward === undefined ? "#b9c0c7" : `var(--${won(n) ? "good" : "bad"})`})
      : drawn("circle", {cx: x[i], cy: y[i], r: 7, fill: colour(n.v)}));
    if (end) g.append(drawn("text", {x: x[i] + 10, y: y[i] + 4, class: n.flipped ? "flip" : ""}, (n.reward === undefined ? "?" : won(n) ? "✓" : "✗") + (n.flipped ? " ⇄" : "")));
    if (n.granted) g.append(drawn("text", {x: x[i] - 6, y: y[i] - 9}, "+" + n.granted));
    g.append(drawn("title", {}, [n.action, facts(n, i === 0)].filter(Boolean).join("\n")));
    g.onclick = () => choose(i, true);
    places[i].g = g;
    svg.append(g);
  });
  return svg;
}

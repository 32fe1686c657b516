"""The page of ``aiordma top --serve``: markup, style and script. It fetches ``/top.json`` and shows it.

Nothing is loaded from elsewhere. What processes and peers have named is only ever set as text, never as
markup.
"""

from __future__ import annotations

MARKUP = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>aiordma top</title>
<link rel="stylesheet" href="/page.css">
<script src="/page.js" defer></script>
</head>
<body>
<header><h1>aiordma top</h1><p id="state" role="status">waiting for the first look</p></header>
<main>
<section aria-labelledby="who"><h2 id="who">Who is slow</h2><ul id="sentences"></ul></section>
<section aria-labelledby="past"><h2 id="past">Ten minutes</h2><div id="charts"></div></section>
<section id="tables"></section>
</main>
</body>
</html>
"""

STYLE = """
:root { color-scheme: light dark; --back: #fbfbfc; --front: #1b1f24; --soft: #6a737d; --line: #d8dde3;
  --card: #fff; --one: #0b63c5; --two: #c2570c; --bad: #b3261e; --fine: #1a7f37; }
@media (prefers-color-scheme: dark) {
  :root { --back: #101418; --front: #e6e9ec; --soft: #98a2ad; --line: #2d343c;
    --card: #171c21; --one: #62a8ff; --two: #f2a35c; --bad: #ff8a80; --fine: #6bd48a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--front); font: 14px/1.45 system-ui, sans-serif; }
header { display: flex; flex-wrap: wrap; gap: 0 16px; align-items: baseline; padding: 12px 20px;
  border-bottom: 1px solid var(--line); }
h1 { font-size: 18px; margin: 0; }
h2 { font-size: 13px; margin: 20px 0 6px; color: var(--soft); font-weight: 600; }
main { padding: 0 20px 40px; }
#state { margin: 0; color: var(--soft); }
#state.bad { color: var(--bad); font-weight: 600; }
#sentences { list-style: none; margin: 0; padding: 0; }
#sentences li { padding: 6px 12px; margin: 4px 0; background: var(--card);
  border-left: 4px solid var(--two); }
#sentences li.bad { border-color: var(--bad); font-weight: 600; }
#sentences li.fine { border-color: var(--fine); }
#charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 12px; }
figure { margin: 0; padding: 8px 12px; background: var(--card); border: 1px solid var(--line); }
figcaption { display: flex; justify-content: space-between; gap: 8px; }
figcaption b { font-weight: 600; }
svg { display: block; width: 100%; height: 70px; margin-top: 4px; }
svg path { fill: none; stroke-width: 1.5; vector-effect: non-scaling-stroke; }
.one { stroke: var(--one); color: var(--one); } .two { stroke: var(--two); color: var(--two); }
.over { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; background: var(--card);
  font: 12.5px/1.4 ui-monospace, monospace; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 12px 3px 6px; text-align: left; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; }
td.number, th.number { text-align: right; }
td.text { white-space: normal; min-width: 20em; overflow-wrap: anywhere; }
tr.bad td { color: var(--bad); }
"""

SCRIPT = """
"use strict";
const byId = id => document.getElementById(id);
const program = row => `${row.program}[${row.pid}]`;
const count = value => value ? String(Math.round(value)) : "";
const micros = (row, value) => row.traced ? `${Math.round(value)} \\u00b5s` : "";
const clock = at => new Date(at * 1000).toLocaleTimeString([], {hour12: false});
function bytes(value) {
  let unit = 0;
  while (value >= 999.5 && unit < 5) { value /= 1024; unit += 1; }
  return unit ? value.toFixed(value < 99.95 ? 1 : 0) + "KMGTP"[unit - 1] : String(Math.round(value));
}
function make(name, text, kind) {
  const found = document.createElement(name);
  if (text !== undefined) found.textContent = text;
  if (kind) found.className = kind;
  return found;
}

const CHARTS = [
  ["connections", String, ["on_rdma", "RDMA"], ["on_tcp", "TCP"]],
  ["bytes a second", bytes, ["sent_per_s", "out"], ["received_per_s", "in"]],
  ["calls a second", count, ["calls_per_s", "calls"]],
  ["completions a second", count, ["completions_per_s", "completions"]],
  ["event loops", String, ["loops", "all"], ["silent", "silent"]],
];
function line(points, name, first, last, most) {
  const x = at => 600 * (at - first) / Math.max(1, last - first), y = value => 68 - 64 * value / most;
  const place = each => `${x(each.at).toFixed(1)} ${y(each[name]).toFixed(1)}`;
  return `M${points.map(place).join("L")}`;
}
function chart([title, show, ...lines], points) {
  const figure = make("figure"), caption = make("figcaption"), space = "http://www.w3.org/2000/svg";
  const last = points[points.length - 1], first = Math.min(points[0].at, last.at - 60);
  const most = Math.max(1e-9, ...points.flatMap(each => lines.map(([name]) => each[name])));
  caption.append(make("b", title));
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", "0 0 600 70");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${title}: ${lines.map(([n, t]) => `${t} ${show(last[n])}`).join(", ")}`);
  const numbers = make("span");
  lines.forEach(([name, text], at) => {
    const kind = at ? "two" : "one", path = document.createElementNS(space, "path");
    path.setAttribute("class", kind);
    path.setAttribute("d", line(points, name, first, last.at, most));
    svg.append(path);
    numbers.append(make("span", `${text} ${show(last[name]) || 0}`, kind), " ");
  });
  caption.append(numbers);
  figure.append(caption, svg);
  return figure;
}

// Title, value, and whether it is a number or a sentence.
const PROGRAM = ["program", program];
const TABLES = [
  ["Event loops", page => page.top.processes, [PROGRAM, ["loop", r => r.loop],
    ["RDMA", r => r.on_rdma, "number"], ["TCP", r => r.on_tcp || "", "number"],
    ["out/s", r => bytes(r.sent_per_s), "number"],
    ["in/s", r => bytes(r.received_per_s), "number"], ["calls/s", r => count(r.calls_per_s), "number"],
    ["slow polls", r => count(r.slow_polls), "number"],
    ["slowest", r => r.slow_polls ? `${(r.slowest_poll_us / 1000).toFixed(1)} ms` : "", "number"],
    ["leaks", r => count(r.leaks), "number"],
    ["state", r => r.text ? `${r.state}: ${r.text}` : r.state, "text"]],
    r => r.state !== "answered" && r.state !== "stopped"],
  ["Events", page => page.events, [["last", r => clock(r.last_at)],
    ["first", r => r.count > 1 ? clock(r.first_at) : ""],
    ["times", r => r.count > 1 ? r.count : "", "number"],
    PROGRAM, ["event", r => r.kind], ["what", r => r.text, "text"]],
    r => ["link lost", "device down", "was killed", "is stuck"].includes(r.kind)],
  ["Busiest connections", page => page.top.connections, [PROGRAM, ["no", r => r.number, "number"],
    ["kind", r => r.kind], ["local", r => r.local], ["remote", r => r.remote], ["mode", r => r.mode],
    ["out/s", r => bytes(r.sent_per_s), "number"], ["in/s", r => bytes(r.received_per_s), "number"],
    ["waiting", r => r.waiting_bytes ? bytes(r.waiting_bytes) : "", "number"],
    ["blocked", r => count(r.blocked), "number"],
    ["for", r => r.blocked_s ? `${r.blocked_s.toFixed(1)} s` : "", "number"]]],
  ["Busiest links", page => page.top.links, [PROGRAM, ["device", r => r.device], ["peer", r => r.peer],
    ["state", r => r.state], ["connections", r => r.connections, "number"],
    ["written/s", r => bytes(r.written_per_s), "number"],
    ["messages/s", r => count(r.messages_per_s), "number"],
    ["waits", r => count(r.waits), "number"]], r => r.state === "failed"],
  ["Slowest calls", page => page.top.methods, [PROGRAM, ["side", r => r.side], ["method", r => r.method],
    ["calls/s", r => count(r.calls_per_s), "number"], ["in flight", r => count(r.in_flight), "number"],
    ["errors", r => count(r.errors), "number"], ["p50", r => micros(r, r.p50_us), "number"],
    ["p99", r => micros(r, r.p99_us), "number"], ["max", r => micros(r, r.max_us), "number"]]],
  ["On TCP", page => page.top.fallbacks, [PROGRAM, ["connections", r => r.connections, "number"],
    ["new", r => count(r.new), "number"], ["when", r => r.when], ["mode", r => r.mode],
    ["reason", r => r.text, "text"]]],
];
function table([title, rowsOf, columns, isBad], page) {
  const rows = rowsOf(page);
  if (!rows.length) return [];
  const found = make("table"), head = found.createTHead().insertRow(), body = found.createTBody();
  for (const [name, , kind] of columns) {
    const title = make("th", name, kind);
    title.scope = "col";
    head.append(title);
  }
  for (const row of rows) {
    const line = body.insertRow();
    if (isBad && isBad(row)) line.className = "bad";
    for (const [, value, kind] of columns) line.append(make("td", String(value(row)), kind));
  }
  const over = make("div", undefined, "over");
  over.append(found);
  return [make("h2", title), over];
}

function show(page) {
  const sum = page.history[page.history.length - 1];
  const rates = `${bytes(sum.sent_per_s)}/s out, ${bytes(sum.received_per_s)}/s in`;
  byId("state").textContent = `${clock(page.top.taken_at)} \\u2014 ${sum.loops} event loops, ` +
    `${sum.on_rdma} connections on RDMA, ${sum.on_tcp} on TCP, ${rates}`;
  byId("state").className = "";
  byId("sentences").replaceChildren(...page.sentences.map(each => make("li", each.text, each.level)));
  byId("charts").replaceChildren(...CHARTS.map(each => chart(each, page.history)));
  byId("tables").replaceChildren(...TABLES.flatMap(each => table(each, page)));
}
async function look() {
  let pause = 1;
  try {
    const answer = await fetch("/top.json", {cache: "no-store"});
    if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
    const page = await answer.json();
    if (page.history.length) show(page);
    pause = Math.max(0.5, page.interval_s);
  } catch (error) {
    byId("state").textContent = `aiordma top does not answer: ${error.message}`;
    byId("state").className = "bad";
  }
  setTimeout(look, 1000 * pause);
}
look();
"""

// Power over time: uPlot over what /api/power answers. Every zoom asks again for the range on screen.
/* global uPlot */
const plot = document.getElementById("plot");
const text = document.getElementById("power-text");
const table = document.getElementById("power-table");
const reading = document.getElementById("reading");
const choice = document.getElementById("gpu");
const whole = [BigInt(plot.dataset.from), BigInt(plot.dataset.to)];
const S = 1e9;
let range = [...whole], chart = null, data = null, epochs = [], steps = [], request = 0;

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function elapsed(seconds) {
  const whole = Math.floor(seconds), rest = seconds - whole;
  if (whole < 60) return `${rest ? seconds.toFixed(1) : whole} s`;
  const h = Math.floor(whole / 3600), m = Math.floor(whole / 60) % 60, s = String(whole % 60).padStart(2, "0");
  return h ? `${h}:${String(m).padStart(2, "0")}:${s}` : `${m}:${s}`;
}

const times = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
const watts = (value) => value == null ? "-" : `${Math.round(value).toLocaleString("en")} W`;

async function load() {
  const mine = ++request;
  const gpus = choice && choice.value ? [choice.value] : plot.dataset.gpus.split(" ");
  const asked = new URLSearchParams(gpus.map((gpu) => ["gpu", gpu]));
  asked.set("from", range[0]); asked.set("to", range[1]); asked.set("px", Math.round(plot.clientWidth || 800));
  try {
    const answer = await fetch(`../api/power?${asked}`);
    const found = await answer.json();
    if (mine !== request) return;
    if (!answer.ok) throw new Error(found.error);
    data = found;
    steps = await loadSteps();
    if (mine !== request) return;
    draw();
  } catch (wrong) {
    if (mine === request) text.textContent = `The chart could not be drawn: ${wrong.message}`;
  }
}

// Up to 200 steps on screen, of at most 10 minutes, are bands in place of epochs.
async function loadSteps() {
  if (!plot.dataset.run || range[1] - range[0] > 600n * 1_000_000_000n) return [];
  const asked = new URLSearchParams({ run: plot.dataset.run, from: range[0], to: range[1] });
  const answer = await fetch(`../api/steps?${asked}`);
  if (!answer.ok) return [];
  const shift = Number(range[0] - whole[0]) / S;
  return (await answer.json()).steps.map(([begin, end]) => [begin + shift, end + shift]);
}

function bands(u) {
  u.ctx.save();
  u.ctx.fillStyle = colour("--band");
  (steps.length ? steps : epochs).forEach(([begin, end], at) => {
    if (at % 2) return;
    const left = Math.max(u.valToPos(begin, "x", true), u.bbox.left);
    const right = Math.min(u.valToPos(end, "x", true), u.bbox.left + u.bbox.width);
    if (right > left) u.ctx.fillRect(left, u.bbox.top, right - left, u.bbox.height);
  });
  u.ctx.restore();
}

function draw() {
  const shift = Number(BigInt(data.from) - whole[0]) / S;
  const columns = [data.t_s.map((t) => t + shift), data.most_w, data.least_w, data.mean_w, data.limit_w];
  const stepped = uPlot.paths.stepped({ align: 1 });
  const font = "12px system-ui, sans-serif", quiet = colour("--quiet");
  const axis = { size: 28, stroke: quiet, font, grid: { stroke: colour("--rule"), width: 1 }, ticks: { show: false } };
  const options = {
    width: plot.clientWidth, height: plot.clientHeight, legend: { show: false }, pxAlign: 0,
    cursor: { y: false, drag: { x: true, y: false, setScale: false }, points: { show: false } },
    scales: { x: { time: false, range: () => [columns[0][0] ?? 0, columns[0].at(-1) ?? 1] },
              y: { range: (u, low, high) => [0, (high || 1) * 1.06] } },
    axes: [{ ...axis, incrs: times, values: (u, at) => at.map(elapsed), grid: { show: false } },
           { ...axis, size: 68, values: (u, at) => at.map((value) => `${value.toLocaleString("en")} W`) }],
    bands: [{ series: [1, 2], fill: colour("--shade") }],
    series: [{}, { paths: stepped, width: 0, points: { show: false } },
             { paths: stepped, width: 0, points: { show: false } },
             { paths: stepped, stroke: colour("--blue"), width: 1.6, points: { show: false } },
             { paths: stepped, stroke: colour("--orange"), width: 1.4, dash: [5, 3], points: { show: false } }],
    hooks: { drawClear: [bands], setSelect: [zoomed], setCursor: [read] },
  };
  if (chart) chart.destroy();
  chart = new uPlot(options, columns, plot);
  text.textContent = data.text;
  fill();
  plot.dataset.drawn = String(request);
}

function read(u) {
  const at = u.cursor.idx;
  reading.textContent = at == null || u.data[0][at] == null ? ""
    : `${elapsed(u.data[0][at])}: ${watts(u.data[3][at])}, limit ${watts(u.data[4][at])}`;
}

function zoomed(u) {
  if (u.select.width < 4) return;
  const [low, high] = [u.select.left, u.select.left + u.select.width].map((at) => u.posToVal(at, "x"));
  show(whole[0] + BigInt(Math.round(low * S)), whole[0] + BigInt(Math.round(high * S)));
}

function show(from, to) {
  const least = 1_000_000_000n;
  if (to - from < least) to = from + least;
  if (to - from >= whole[1] - whole[0]) [from, to] = whole;
  if (from < whole[0]) [from, to] = [whole[0], to + whole[0] - from];
  if (to > whole[1]) [from, to] = [from + whole[1] - to, whole[1]];
  range = [from, to];
  const all = from === whole[0] && to === whole[1];
  history.replaceState(null, "", all ? location.pathname : `#${seconds(from)}-${seconds(to)}`);
  load();
}

// The range on screen is in the address, in seconds since the begin: a link shows the same.
const seconds = (ns) => (Number(ns - whole[0]) / S).toFixed(1);
const given = /^#([\d.]+)-([\d.]+)$/.exec(location.hash);
if (given) range = given.slice(1).map((at) => whole[0] + BigInt(Math.round(at * S)));

// The page of an open run: the chart goes on while its end is on screen.
let followed = 0;
function follow() {
  const wall = document.querySelector("#now [data-wall-ns]")?.dataset.wallNs;
  if (!wall || !plot.dataset.run || performance.now() - followed < 2000) return;
  followed = performance.now();
  const end = BigInt(wall), last = range[1] === whole[1], first = range[0] === whole[0];
  whole[1] = end;
  if (!last) return;
  range = first ? [...whole] : [range[0] + end - range[1], end];
  load();
}
addEventListener("now", follow);

const moves = {
  in: (from, to, part) => show(from + part, to - part),
  out: (from, to, part) => show(from - 2n * part, to + 2n * part),
  left: (from, to, part) => show(from - part, to - part),
  right: (from, to, part) => show(from + part, to + part),
  all: () => show(...whole),
};
const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all", Escape: "all" };
const move = (name) => moves[name](...range, (range[1] - range[0]) / 4n);

plot.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
  event.preventDefault();
  move(keys[event.key]);
});
document.querySelectorAll("button[data-do]").forEach((each) => each.addEventListener("click", () => move(each.dataset.do)));
if (choice) choice.addEventListener("change", load);

// The same figures as a table, every tenth of the range.
function fill() {
  const rows = document.createElement("table"), head = rows.createTHead().insertRow(), body = rows.createTBody();
  for (const name of ["after", "mean", "least", "most", "limit"]) {
    const cell = document.createElement("th");
    cell.scope = "col"; cell.textContent = name; head.append(cell);
  }
  const every = Math.max(1, Math.ceil((data.t_s.length - 1) / 12));
  for (let at = 0; at < data.t_s.length - 1; at += every) {
    const row = body.insertRow(), shift = Number(BigInt(data.from) - whole[0]) / S;
    row.insertCell().textContent = elapsed(data.t_s[at] + shift);
    for (const name of ["mean_w", "least_w", "most_w", "limit_w"]) row.insertCell().textContent = watts(data[name][at]);
  }
  table.replaceChildren(rows);
}

// The panel of the epochs comes later on the page, with their begin (ns) and duration (s).
function loadEpochs() {
  const spans = document.querySelector("#epochs [data-spans]")?.dataset.spans.split(" ").filter(Boolean) ?? [];
  epochs = spans.map((each) => each.split(":").map(Number)).map(([begin, seconds]) => [begin / S, begin / S + seconds]);
  if (chart) chart.redraw();
}

let resized = 0;
new ResizeObserver(() => {
  if (!chart || chart.width === plot.clientWidth) return;
  chart.setSize({ width: plot.clientWidth, height: plot.clientHeight });
  clearTimeout(resized);
  resized = setTimeout(load, 300);
}).observe(plot);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => data && draw());
load();
if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", loadEpochs);
else loadEpochs();

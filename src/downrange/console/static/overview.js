// The charts and figures of the overview. The series come as JSON once; events add a point each.

const KEPT = 1000;
const FORMS = {
  number: (value) => Math.round(value).toLocaleString("en-US"),
  rate: (value) =>
    value >= 100 || value === 0 ? Math.round(value).toLocaleString("en-US") : value.toFixed(1),
  bytes: (value) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = 0;
    while (value >= 1024 && unit < units.length - 1) {
      value /= 1024;
      unit += 1;
    }
    return `${unit ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
  },
};
// Steps between labels of the time axis, in seconds.
const STEPS = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600];
// Steps between labels of a scale; whole numbers, so that no two labels are the same.
const WHOLE = Array.from({ length: 15 }, (_, power) => [1, 2, 5].map((each) => each * 10 ** power)).flat();
const POWERS_OF_TWO = Array.from({ length: 51 }, (_, power) => 2 ** power);
const CHARTS = {
  rates: { names: ["sent", "received"], form: "rate" },
  lag: { names: ["lag"], form: "number", steps: WHOLE },
  stored: { names: ["stored"], form: "bytes", steps: POWERS_OF_TWO },
};
const format = (form, value) => (value == null ? "–" : FORMS[form](value));

const drawn = {};
let series = null;
let span = "recent";

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// Hours and minutes, with seconds where labels would repeat.
function clocks(_plot, times) {
  const isClose = times.length > 1 && times[1] - times[0] < 60;
  return times.map((each) => new Date(each * 1000).toISOString().slice(11, isClose ? 19 : 16));
}

function options(chart, box) {
  const axis = { stroke: color("soft"), grid: { stroke: color("grid"), width: 1 }, ticks: { stroke: color("grid"), width: 1 }, font: "11px system-ui, sans-serif" };
  return {
    width: box.clientWidth,
    height: 190,
    padding: [10, 26, 0, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false } },
    scales: { x: { time: false }, y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1)] } },
    axes: [
      { ...axis, values: clocks, space: 90, size: 28, incrs: STEPS },
      { ...axis, size: 66, ...(chart.steps && { incrs: chart.steps }), values: (_, values) => values.map((value) => format(chart.form, value)) },
    ],
    series: [
      {},
      ...chart.names.map((name) => ({ stroke: color(name), width: 1.6, fill: `${color(name)}1c`, points: { show: false }, spanGaps: false })),
    ],
    hooks: { setCursor: [(plot) => showLegend(chart, plot.cursor.idx)] },
  };
}

function data(chart) {
  const { times, columns } = series[span];
  return [times, ...chart.names.map((name) => columns[name] ?? times.map(() => null))];
}

function showLegend(chart, index) {
  const { times, columns } = series[span];
  for (const name of chart.names) {
    const values = columns[name] ?? [];
    const value = values[index ?? times.length - 1];
    const text = document.querySelector(`[data-legend="${name}"]`);
    text.textContent = value == null ? "" : format(chart.form, value);
  }
}

function draw() {
  if (!series) return;
  for (const [id, chart] of Object.entries(CHARTS)) {
    const box = document.getElementById(id);
    drawn[id]?.destroy();
    drawn[id] = new uPlot(options(chart, box), data(chart), box);
    showLegend(chart, null);
  }
}

function update() {
  for (const [id, chart] of Object.entries(CHARTS)) {
    drawn[id]?.setData(data(chart));
    if (drawn[id] && drawn[id].cursor.idx == null) showLegend(chart, null);
  }
}

function addPoint(point) {
  const { times, columns } = series.recent;
  if (!point || point.time <= (times.at(-1) ?? 0)) return;
  times.push(point.time);
  for (const [name, values] of Object.entries(columns)) values.push(point[name] ?? null);
  while (times.length > KEPT || times[0] < point.time - 900) {
    times.shift();
    for (const values of Object.values(columns)) values.shift();
  }
}

async function load() {
  try {
    const answer = await fetch("/?format=json");
    if (!answer.ok) return;
    const overview = await answer.json();
    series = { recent: overview.recent, day: overview.day };
    draw();
  } catch {
    // The stream opens again when the console is back, and then asks once more.
  }
}

function show(overview) {
  for (const each of document.querySelectorAll("[data-figure]")) {
    each.textContent = format(each.dataset.form, overview[each.dataset.figure]);
  }
  document.querySelector("[data-count=brokers]").textContent = overview.brokers.length;
}

document.addEventListener("overview", ({ detail }) => {
  show(detail);
  if (!series) {
    load();
    return;
  }
  addPoint(detail.point);
  update();
});
document.addEventListener("themechange", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
document.addEventListener("visibilitychange", () => !document.hidden && load());

let resized = 0;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(draw, 150);
});

for (const button of document.querySelectorAll("[data-span]")) {
  button.addEventListener("click", () => {
    span = button.dataset.span;
    for (const each of document.querySelectorAll("[data-span]")) {
      each.setAttribute("aria-pressed", String(each === button));
    }
    load();
  });
}

load();

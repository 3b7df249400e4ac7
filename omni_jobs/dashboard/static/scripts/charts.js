// The charts of the overview, which uPlot draws of the values that stand in the page.

const HEIGHT = 160;
const drawn = new Map();  // by the element in which a chart stands

function lines() {
  return [...document.querySelectorAll("#lines tbody tr")].map((row) => ({
    label: row.querySelector(".line-name").textContent,
    stroke: getComputedStyle(row.querySelector(".swatch")).backgroundColor,
  }));
}

function time(seconds) { return new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " "); }

function tick(seconds, step) { return step < 86400 ? time(seconds).slice(11) : time(seconds).slice(5, 10); }

function tell(output, chart) {
  const at = chart.cursor.idx;
  if (at == null) { output.textContent = ""; return; }
  const known = chart.series.slice(1).map((line, number) => [line.label, chart.data[number + 1][at]]);
  const told = known.filter(([, value]) => value != null).map(([label, value]) => `${label} ${value}`);
  output.textContent = `${time(chart.data[0][at])} UTC: ${told.join(", ") || "nothing"}`;
}

function options(figure, width) {
  const style = getComputedStyle(document.body);
  const soft = getComputedStyle(figure.querySelector("output")).color;
  const axis = { stroke: soft, grid: { stroke: soft, width: 0.15 }, ticks: { show: false }, font: `12px ${style.fontFamily}` };
  return {
    width,
    height: HEIGHT,
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    padding: [6, 10, 0, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, sync: { key: "charts" } },
    scales: { y: { range: (chart, least, most) => [0, most > 0 ? most * 1.08 : 1] } },
    axes: [{ ...axis, space: 70, size: 26, values: (chart, at, _, space, step) => at.map((each) => tick(each, step)) }, { ...axis, space: 26, size: 44 }],
    series: [{}, ...lines().map((line) => ({ ...line, width: 1.5, points: { size: 3 } }))],
    hooks: { setCursor: [(chart) => tell(figure.querySelector("output"), chart)] },
  };
}

function draw() {
  for (const [place, chart] of drawn) {
    if (!place.isConnected) { chart.destroy(); drawn.delete(place); }
  }
  for (const figure of document.querySelectorAll("figure[data-values]")) {
    const place = figure.querySelector(".plot");
    const values = JSON.parse(figure.dataset.values);
    const known = drawn.get(place);
    const names = lines().map((line) => line.label).join();
    if (known && known.names === names) { known.setData(values); continue; }
    known?.destroy();
    const chart = new uPlot(options(figure, place.clientWidth), values, place);
    chart.names = names;
    drawn.set(place, chart);
  }
}

function anew() {
  for (const chart of drawn.values()) chart.destroy();
  drawn.clear();
  draw();
}

let asked = null;
function askAgain() {
  clearTimeout(asked);
  const seconds = Number(document.getElementById("charts-over")?.dataset.again);
  if (!seconds) return;
  asked = setTimeout(() => {
    if (!document.hidden) window.htmx?.trigger(document.getElementById("charts"), "again");
    askAgain();
  }, 1000 * seconds);
}

new ResizeObserver(() => {
  for (const [place, chart] of drawn) {
    if (place.clientWidth && place.clientWidth !== chart.width) chart.setSize({ width: place.clientWidth, height: HEIGHT });
  }
}).observe(document.body);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", anew);
document.addEventListener("htmx:after:swap", draw);
draw();
askAgain();

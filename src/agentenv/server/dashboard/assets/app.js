"use strict";
// The theme is chosen before anything is painted.
const preferred = matchMedia("(prefers-color-scheme: dark)");
function applyTheme() {
  const chosen = localStorage.getItem("agentenv-theme");
  const dark = chosen ? chosen === "dark" : preferred.matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  window.Quasar?.Dark?.set(dark);
}
function switchTheme() {
  localStorage.setItem("agentenv-theme", document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  applyTheme();
}
applyTheme();
preferred.addEventListener("change", applyTheme);
addEventListener("load", applyTheme);

// Keys: "/" searches, "g" and a letter goes somewhere, "?" lists them. Whoever types into a field or a terminal means the letter itself.
let awaiting = -Infinity;
addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select, [contenteditable=true], .xterm");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (performance.now() - awaiting < 1500) {
    awaiting = -Infinity;
    document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`)?.click();
    return;
  }
  if (event.key === "g") awaiting = performance.now();
  if (event.key === "?") document.getElementById("shortcuts")?.showModal();
  if (event.key === "/") {
    const field = document.querySelector(".search input");
    if (field) { event.preventDefault(); field.focus(); }
  }
});

// Sends chosen files into a sandbox, one after the other, and tells the page when all are there.
async function sendFiles(input, target, done) {
  for (const file of input.files) {
    const path = `${input.dataset.directory.replace(/\/$/, "")}/${file.name}`;
    const answer = await fetch(`${target}?path=${encodeURIComponent(path)}`, { method: "PUT", body: file });
    const told = answer.ok ? null : (await answer.json()).message;
    done(file.name, told);
  }
  input.value = "";
}

// Charts: new points are added to those that are there.
function extendChart(id, lines, keep) {
  const chart = getElement(id)?.chart;
  if (!chart) return;
  const series = chart.getOption().series;
  chart.setOption({ series: lines.map((points, i) => ({ showSymbol: false, data: series[i].data.concat(points).slice(-keep) })) });
}
function axisLabel(unit) {
  const sizes = (value) => {
    for (const name of ["B", "KiB", "MiB", "GiB"]) { if (Math.abs(value) < 1024) return `${+value.toPrecision(3)} ${name}`; value /= 1024; }
    return `${+value.toPrecision(3)} TiB`;
  };
  return unit === "bytes" ? { formatter: sizes, hideOverlap: true } : { hideOverlap: true };
}

// A terminal takes all keys, Tab among them. F6 leaves it, so that nobody is caught in it.
addEventListener("keydown", (event) => {
  if (event.key !== "F6" || !event.target.closest?.(".xterm")) return;
  event.preventDefault();
  event.stopPropagation();
  document.querySelector(".q-tab--active")?.focus();
}, true);

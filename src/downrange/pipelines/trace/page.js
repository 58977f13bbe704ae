"use strict";
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const tip = document.getElementById("tip");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const other = { light: "dark", dark: "light" };

  // The colours are those of the system, until the button changes them; and again when it has
  // changed them back.
  let chosen = null;
  try { chosen = localStorage.getItem("downrange-theme"); } catch { /* no storage for local files */ }
  if (!(chosen in other)) chosen = null;
  const shown = () => chosen ?? (system.matches ? "dark" : "light");
  const show = () => {
    if (chosen === null) delete root.dataset.theme;
    else root.dataset.theme = chosen;
    button.textContent = "Use " + other[shown()] + " colours";
  };
  show();
  button.hidden = false;
  system.addEventListener("change", show);
  button.addEventListener("click", () => {
    const wanted = other[shown()];
    chosen = wanted === (system.matches ? "dark" : "light") ? null : wanted;
    show();
    try {
      if (chosen === null) localStorage.removeItem("downrange-theme");
      else localStorage.setItem("downrange-theme", chosen);
    } catch { /* the choice is not kept */ }
  });

  const line = (name, value) => {
    const row = document.createElement("div");
    for (const text of [name, value]) {
      const cell = document.createElement("span");
      cell.textContent = text;
      row.append(cell);
    }
    return row;
  };
  for (const plot of document.querySelectorAll("[data-chart]")) {
    const facts = JSON.parse(plot.dataset.chart);
    const area = plot.querySelector(".area");
    const cursor = plot.querySelector(".cursor");
    const count = facts.values.length ? facts.values[0].length : 0;
    const hide = () => { tip.hidden = cursor.hidden = true; };
    area.addEventListener("pointerleave", hide);
    area.addEventListener("pointermove", (event) => {
      if (!count) return;
      const box = area.getBoundingClientRect();
      const part = (event.clientX - box.left) / box.width;
      const index = Math.min(count - 1, Math.max(0, Math.floor(part * count)));
      const begin = facts.begin + index * facts.bucket;
      const head = document.createElement("strong");
      const shownDigits = facts.bucket % 1000 ? 23 : 19;
      head.textContent = new Date(begin).toISOString().slice(0, shownDigits).replace("T", " ") + " UTC";
      const rows = facts.names.map((name, i) => line(name, facts.values[i][index] ?? "–"));
      for (const [from, to, broker] of facts.outages) {
        if (from <= begin && begin < to) rows.push(line("outage of " + broker, ""));
      }
      tip.replaceChildren(head, ...rows);
      tip.hidden = cursor.hidden = false;
      cursor.style.left = ((index + 0.5) / count) * 100 + "%";
      const width = tip.offsetWidth, height = tip.offsetHeight;
      const left = event.clientX + 14 + width > innerWidth ? event.clientX - width - 14 : event.clientX + 14;
      tip.style.left = Math.max(6, left) + "px";
      tip.style.top = Math.max(6, event.clientY - height - 12) + "px";
    });
  }
})();

"use strict";
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const tip = document.getElementById("tip");
  const themes = ["auto", "light", "dark"];
  const words = { auto: "Auto", light: "Light", dark: "Dark" };

  const show = (theme) => {
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
    button.textContent = words[theme];
    button.setAttribute("aria-label", "Colours: " + (theme === "auto" ? "as the system" : theme));
  };
  let theme = "auto";
  try { theme = localStorage.getItem("downrange-theme") || "auto"; } catch { /* no storage for local files */ }
  if (!themes.includes(theme)) theme = "auto";
  show(theme);
  button.addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    show(theme);
    try { localStorage.setItem("downrange-theme", theme); } catch { /* the choice is not kept */ }
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
      const at = new Date(facts.begin + index * facts.bucket).toISOString();
      const head = document.createElement("strong");
      head.textContent = at.slice(0, 19).replace("T", " ") + " UTC";
      tip.replaceChildren(head, ...facts.names.map((name, i) => line(name, facts.values[i][index] ?? "–")));
      tip.hidden = cursor.hidden = false;
      cursor.style.left = ((index + 0.5) / count) * 100 + "%";
      const width = tip.offsetWidth, height = tip.offsetHeight;
      const left = event.clientX + 14 + width > innerWidth ? event.clientX - width - 14 : event.clientX + 14;
      tip.style.left = Math.max(6, left) + "px";
      tip.style.top = Math.max(6, event.clientY - height - 12) + "px";
    });
  }
})();

// What every page has: theme, menu, copy buttons, names to be typed in, the state of the cluster,
// and parts that are kept up to date. Each page works without it, except for the live parts.

const REFRESH_MS = 5000;
const THEME_SECONDS = 365 * 86400;
const AGAIN_MS = 5000;
// What a script asks for by itself does not keep the session alive.
const BY_ITSELF = { "x-downrange-refresh": "yes" };

// ---- theme and menu ----

function currentTheme() {
  const chosen = document.documentElement.dataset.theme;
  if (chosen) return chosen;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

function labelTheme(button) {
  button.textContent = currentTheme() === "dark" ? button.dataset.light : button.dataset.dark;
}

const themeSwitch = document.getElementById("theme-switch");
if (themeSwitch) {
  labelTheme(themeSwitch);
  themeSwitch.addEventListener("click", () => {
    const theme = currentTheme() === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    document.cookie = `downrange_theme=${theme}; path=/; max-age=${THEME_SECONDS}; samesite=lax`;
    labelTheme(themeSwitch);
    document.dispatchEvent(new Event("themechange"));
  });
}

const menuSwitch = document.getElementById("menu-switch");
menuSwitch?.addEventListener("click", () => {
  const side = document.getElementById("side");
  const isOpen = side.toggleAttribute("data-open");
  menuSwitch.setAttribute("aria-expanded", String(isOpen));
});

// The other language of this very page: its query stays.
for (const link of document.querySelectorAll("[data-language]")) {
  const address = new URL(location.href);
  address.searchParams.set("lang", new URL(link.href).searchParams.get("lang"));
  address.searchParams.delete("done");
  link.href = address.pathname + address.search;
}

// ---- buttons and fields ----

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  if (button?.hasAttribute("data-copy")) {
    const text = button.parentElement.querySelector("code").textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      selectText(button.parentElement.querySelector("code")); // no secure context: copy by hand
      return;
    }
    button.dataset.label ??= button.textContent;
    button.textContent = "✓";
    setTimeout(() => (button.textContent = button.dataset.label), 1200);
  } else if (button?.hasAttribute("data-back")) {
    history.back();
  }
});

function selectText(node) {
  const range = document.createRange();
  range.selectNodeContents(node);
  getSelection().removeAllRanges();
  getSelection().addRange(range);
}

if (history.length > 1) {
  for (const button of document.querySelectorAll("[data-back]")) button.hidden = false;
}

for (const field of document.querySelectorAll("[data-must-equal]")) {
  const button = field.form.querySelector("button");
  const check = () => (button.disabled = field.value !== field.dataset.mustEqual);
  field.addEventListener("input", check);
  check();
}

for (const box of document.querySelectorAll("[data-all]")) {
  box.addEventListener("change", () => {
    for (const each of box.form.querySelectorAll(`input[name="${box.dataset.all}"]`)) {
      each.checked = box.checked;
    }
  });
}

for (const link of document.querySelectorAll("[data-export]")) {
  link.addEventListener("click", () => {
    const address = new URL(link.href);
    address.searchParams.delete("id");
    const form = document.getElementById(link.dataset.export);
    for (const each of form.querySelectorAll("input[name=id]:checked")) {
      address.searchParams.append("id", each.value);
    }
    link.href = address.pathname + address.search;
  });
}

for (const field of document.querySelectorAll("[data-filter]")) {
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase();
    for (const row of document.getElementById(field.dataset.filter).rows) {
      row.hidden = !row.textContent.toLowerCase().includes(words);
    }
  });
}

// A form is sent once: a second click would do an action twice.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post") return;
  if (form.dataset.sent) event.preventDefault();
  form.dataset.sent = "yes";
});
addEventListener("pageshow", () => {
  for (const form of document.forms) delete form.dataset.sent;
});

// A link such as /topics/x#send opens the form.
const target = location.hash && document.getElementById(location.hash.slice(1));
if (target instanceof HTMLDetailsElement) target.open = true;

// ---- live: one stream per visible window ----

const state = document.getElementById("state");
const stateText = document.getElementById("state-text");
const gone = document.getElementById("gone");
const refusing = document.getElementById("refusing");
let source = null;
let again = 0;
let wasUp = null;

function showState(cluster) {
  state.dataset.up = cluster.is_up ? "yes" : cluster.problem ? "no" : "";
  if (cluster.is_up || cluster.problem) {
    stateText.textContent = cluster.is_up ? state.dataset.answers : state.dataset.gone;
  }
  gone.hidden = cluster.is_up || !cluster.problem;
  refusing.hidden = !cluster.is_up || !cluster.problem;
  for (const id of ["gone-problem", "refusing-problem"]) {
    document.getElementById(id).textContent = cluster.problem ?? "";
  }
  const isBack = cluster.is_up && wasUp === false;
  wasUp = cluster.is_up;
  if (!isBack) return;
  if (document.querySelector("[data-reload-when-up]")) location.reload();
  else refresh();
}

function open() {
  if (source || !state) return;
  source = new EventSource("/events");
  source.addEventListener("overview", (event) => {
    const overview = JSON.parse(event.data);
    showState(overview.state);
    document.dispatchEvent(new CustomEvent("overview", { detail: overview }));
  });
  source.addEventListener("error", () => {
    if (source?.readyState === EventSource.CLOSED) goOn();
    else showProblem(state.dataset.lost);
  });
  // The session has ended, or another window has logged in.
  source.addEventListener("problem", goOn);
}

function showProblem(text) {
  state.dataset.up = "no";
  stateText.textContent = text;
}

function close() {
  clearTimeout(again);
  source?.close();
  source = null;
}

// After a refusal the browser does not open the stream again: ask why it was refused, then go on.
async function goOn() {
  close();
  const status = await statusOf("/events");
  if (source) return; // the window was hidden and shown again
  if (status === 401) {
    needLogin();
    return;
  }
  if (status !== 200) showProblem(status === 429 ? state.dataset.crowded : state.dataset.lost);
  again = setTimeout(() => !document.hidden && open(), AGAIN_MS);
}

async function statusOf(address) {
  const asking = new AbortController();
  try {
    return (await fetch(address, { headers: BY_ITSELF, signal: asking.signal })).status;
  } catch {
    return 0;
  } finally {
    asking.abort(); // a stream that is accepted must not stay open
  }
}

// ---- login ----

// To the login and back, unless this would lose what was typed in.
function needLogin() {
  if (isFilledIn()) {
    showProblem(state.dataset.ended);
    return;
  }
  const isAction = location.pathname.startsWith("/actions/"); // there is no page to come back to
  const here = isAction ? "/" : location.pathname + location.search;
  location.assign(`/login?next=${encodeURIComponent(here)}`);
}

function isFilledIn() {
  const fields = document.querySelectorAll("form[method=post] :is(input, textarea)");
  return [...fields].some((field) => field.value !== field.defaultValue);
}

document.addEventListener("loginneeded", needLogin);

// Browsers allow six connections per site: hidden windows must not hold them.
document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
addEventListener("pagehide", close);
addEventListener("pageshow", () => !document.hidden && open());
// A page that could not be loaded has no overview to compare with.
if (document.querySelector("[data-reload-when-up]")) wasUp = false;

// ---- parts that are loaded again ----

function isInUse(part) {
  if (part.contains(document.activeElement) && document.activeElement.matches("input, select")) {
    return true;
  }
  const selection = getSelection();
  return selection && !selection.isCollapsed && part.contains(selection.anchorNode);
}

async function refresh() {
  const part = document.querySelector("[data-refresh]");
  if (!part || document.hidden || isInUse(part)) return;
  let text;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html", ...BY_ITSELF } });
    if (answer.redirected && new URL(answer.url).pathname === "/login") {
      needLogin();
      return;
    }
    if (!answer.ok || answer.redirected) return;
    text = await answer.text();
  } catch {
    return; // the stream shows that the console is gone
  }
  const fresh = new DOMParser().parseFromString(text, "text/html").getElementById(part.id);
  if (!fresh || isInUse(part)) return;
  const scrolled = [...part.querySelectorAll(".wide")].map((each) => each.scrollLeft);
  const focused = part.contains(document.activeElement) && document.activeElement.getAttribute("href");
  part.replaceChildren(...fresh.childNodes);
  part.querySelectorAll(".wide").forEach((each, index) => (each.scrollLeft = scrolled[index] ?? 0));
  if (focused) part.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
  document.dispatchEvent(new Event("refreshed"));
}

if (document.querySelector("[data-refresh]")) setInterval(refresh, REFRESH_MS);

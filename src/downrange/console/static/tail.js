// The live tail of a topic: rows are added as text, never as HTML.

const ROWS_MAX = 500;
const panel = document.getElementById("tail");

if (panel) {
  const form = document.getElementById("tail-form");
  const list = document.getElementById("tail-list");
  const rows = document.getElementById("tail-rows");
  const state = document.getElementById("tail-state");
  const start = document.getElementById("tail-start");
  const stop = document.getElementById("tail-stop");
  let source = null;

  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");

  function cell(row, text, kind) {
    const node = row.insertCell();
    node.textContent = text ?? "–";
    if (kind) node.className = kind;
    return node;
  }

  function add(message) {
    const row = rows.insertRow(0);
    row.className = "new";
    cell(row, message.stored_at.slice(0, 19).replace("T", " "), "time");
    cell(row, `${message.broker}:${message.queue}`, "number");
    cell(row, message.offset.toLocaleString("en-US"), "number");
    cell(row, message.tags);
    const keys = message.keys.join(" ");
    cell(row, keys || "–", "keys cut").title = keys;
    const link = document.createElement("a");
    link.textContent = message.message_id;
    link.href = `/message?${new URLSearchParams({ topic: message.topic, id: message.offset_id })}`;
    cell(row, "", "code").replaceChildren(link);
    if (message.problem) cell(row, fill(panel.dataset.unreadable, message), "cut faint").title = message.problem;
    else cell(row, message.preview, "code cut");
    while (rows.rows.length > ROWS_MAX) rows.deleteRow(-1);
  }

  function end(text) {
    source?.close();
    source = null;
    start.hidden = false;
    stop.hidden = true;
    if (text) state.textContent = text;
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    end("");
    rows.replaceChildren();
    list.hidden = false;
    start.hidden = true;
    stop.hidden = false;
    const query = new URLSearchParams(new FormData(form));
    query.set("topic", panel.dataset.topic);
    open(`/events/tail?${query}`);
  });

  async function open(address) {
    source = new EventSource(address);
    const mine = source;
    source.addEventListener("batch", (event) => {
      const batch = JSON.parse(event.data);
      batch.messages.forEach(add);
      let text = fill(panel.dataset.scanned, batch);
      if (batch.stopped) {
        const reason = panel.getAttribute(`data-reason-${batch.stopped}`) ?? batch.stopped;
        text += ` · ${fill(panel.dataset.stopped, { reason })}${batch.problem ? ` (${batch.problem})` : ""}`;
        end(text);
      } else {
        state.textContent = text;
      }
    });
    source.addEventListener("problem", (event) => end(JSON.parse(event.data).text));
    source.addEventListener("error", async () => {
      if (mine.readyState !== EventSource.CLOSED) {
        // A stream that ended would begin anew, with messages twice: stop instead.
        end(panel.dataset.lost);
        return;
      }
      const problem = await askWhy(address);
      if (source === mine) end(problem ?? panel.dataset.lost);
    });
  }

  // The address was refused: ask once more for the reason.
  async function askWhy(address) {
    const asking = new AbortController();
    try {
      const headers = { accept: "application/json" };
      const answer = await fetch(address, { headers, signal: asking.signal });
      if (answer.status === 401) document.dispatchEvent(new Event("loginneeded"));
      return answer.ok ? null : (await answer.json()).error?.text;
    } catch {
      return null;
    } finally {
      asking.abort(); // one that is accepted now would be another open stream
    }
  }

  stop.addEventListener("click", () => end(""));
  addEventListener("pagehide", () => end(""));
}

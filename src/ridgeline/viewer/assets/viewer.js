// The script of `ridgeline view`: notes edited in place, search, comparing, deleting, live numbers.
// Texts from the server are put into the page as text, never as HTML.
"use strict";

const POLL_MS = 1000;
const MAX_POINTS = 600; // of a live chart
const MESSAGE_MS = 4000;
const WIDTH = 480, HEIGHT = 120; // of a live chart
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

let messageTimer;
function say(text) {
  byId("message").textContent = text;
  clearTimeout(messageTimer);
  messageTimer = setTimeout(() => { byId("message").textContent = ""; }, MESSAGE_MS);
}

async function post(path, data) {
  const token = document.querySelector("meta[name=write-token]").content;
  let response;
  try {
    response = await fetch(path, {
      method: "POST", body: JSON.stringify(data), credentials: "same-origin",
      headers: { "Content-Type": "application/json", "X-Ridgeline-Token": token },
    });
  } catch {
    throw new Error("ridgeline view has ended: start it again to change runs");
  }
  if (response.status === 403) throw new Error("this server was started anew: open its new address");
  const answer = await response.json();
  if (answer.problem) throw new Error(answer.problem);
  return answer;
}

function editInPlace(row) {
  const tags = row.querySelector(".tags"), text = row.querySelector(".text");
  if (!tags || !text) return;
  let saved = { tags: tags.value, text: text.value };
  const save = async () => {
    if (tags.value === saved.tags && text.value === saved.text) return;
    try {
      saved = await post(`${row.dataset.name}/notes`, { tags: tags.value, text: text.value });
      tags.value = saved.tags;
      text.value = saved.text;
      say("saved");
    } catch (error) {
      say(error.message);
    }
  };
  for (const field of [tags, text]) {
    field.addEventListener("change", save);
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { tags.value = saved.tags; text.value = saved.text; }
      if (event.key === "Enter" && (field === tags || event.ctrlKey || event.metaKey)) save();
    });
  }
}

function ask(question) {
  const dialog = byId("question");
  byId("question-text").textContent = question;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

async function deleteRuns(names, title) {
  const what = names.length === 1 ? `the run ${title}` : `these ${names.length} runs`;
  if (!await ask(`Delete ${what}? Everything that was recorded is removed from the disk.`)) return;
  try {
    await post("/delete", { names });
    location.assign("/");
  } catch (error) {
    say(error.message);
  }
}

function chosenBoxes() {
  return [...document.querySelectorAll(".choose:checked")];
}

function listPage() {
  const update = () => {
    const count = chosenBoxes().length;
    byId("compare").disabled = count !== 2;
    byId("delete").disabled = count === 0;
  };
  document.querySelectorAll(".choose").forEach((box) => box.addEventListener("change", update));
  update();
  byId("compare").addEventListener("click", () => {
    // The older run comes first: the list is usually sorted with the newest on top.
    const [b, a] = chosenBoxes().map((box) => box.value);
    location.assign(`/compare?${new URLSearchParams({ a, b })}`);
  });
  byId("delete").addEventListener("click", () => {
    const boxes = chosenBoxes();
    deleteRuns(boxes.map((box) => box.value), boxes[0].dataset.title);
  });
  byId("figure")?.addEventListener("change", (event) => event.target.form.submit());
  byId("search").addEventListener("input", (event) => filterRows(event.target.value));
}

function filterRows(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = new Set();
  document.querySelectorAll("#runs tr[data-text]").forEach((row) => {
    row.hidden = !words.every((word) => row.dataset.text.includes(word));
    if (!row.hidden) shown.add(row.dataset.name);
  });
  document.querySelectorAll("#runs tr[data-of]").forEach((row) => {
    row.hidden = !shown.has(row.dataset.of);
  });
  byId("history")?.classList.toggle("filtered", words.length > 0);
  document.querySelectorAll("#history a").forEach((point) => {
    point.style.visibility = shown.has(point.getAttribute("href")) ? "" : "hidden";
  });
}

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function drawChart(place, points) {
  const known = points.filter(([, y]) => Number.isFinite(y));
  const picture = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  if (known.length > 1) {
    const xs = known.map(([x]) => x), ys = known.map(([, y]) => y);
    const left = Math.min(...xs), right = Math.max(...xs);
    let low = Math.min(...ys), high = Math.max(...ys);
    if (low === high) { low -= Math.abs(low) / 10 || 1; high += Math.abs(high) / 10 || 1; }
    const x = (value) => 60 + (WIDTH - 64) * (value - left) / (right - left || 1);
    const y = (value) => 6 + (HEIGHT - 14) * (high - value) / (high - low);
    for (const value of [low, (low + high) / 2, high]) {
      picture.append(element("line", { x1: 60, x2: WIDTH - 4, y1: y(value), y2: y(value), class: "grid" }));
      const label = { x: 54, y: y(value) + 4, "text-anchor": "end", class: "tick" };
      picture.append(element("text", label, String(Number(value.toPrecision(3)))));
    }
    const path = known.map((p) => `${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`).join(" ");
    picture.append(element("polyline", { points: path, class: "curve" }));
    picture.setAttribute("aria-label", `from ${low.toPrecision(3)} to ${high.toPrecision(3)}`);
  } else {
    picture.append(element("text", { x: 60, y: HEIGHT / 2, class: "tick" }, "nothing yet"));
  }
  place.replaceChildren(picture);
}

function drawPhases(place, phases) {
  const total = phases.reduce((sum, [, ms]) => sum + ms, 0);
  const wide = 2 * WIDTH;
  const picture = element("svg", { viewBox: `0 0 ${wide} 54`, role: "img" });
  picture.setAttribute("aria-label", phases.map(([name, , text]) => `${name} ${text}`).join(", "));
  let x = 0, legend = 0;
  for (const [name, ms, text] of phases) {
    const part = wide * ms / total;
    picture.append(element("rect", { x, y: 0, width: part, height: 24, class: name }));
    picture.append(element("rect", { x: legend, y: 34, width: 11, height: 11, class: name }));
    picture.append(element("text", { x: legend + 16, y: 44 }, `${name} ${text}`));
    x += part;
    legend += 36 + 7 * (name.length + text.length);
  }
  place.replaceChildren(...(total ? [picture] : []));
}

function livePage(main) {
  const seen = { steps: [], telemetry: [] };
  let offsets = { steps: "", telemetry: "" };
  const show = (news) => {
    if (news.began_over) seen.steps = [];
    offsets = news.offsets;
    seen.steps = [...seen.steps, ...news.steps].slice(-MAX_POINTS);
    seen.telemetry = [...seen.telemetry, ...news.telemetry].slice(-MAX_POINTS);
    byId("stage").textContent = news.sentence;
    byId("figures").replaceChildren(...news.figures.map(([label, text]) => {
      const pair = document.createElement("div");
      const term = document.createElement("dt"), value = document.createElement("dd");
      term.textContent = label;
      value.textContent = text;
      pair.append(term, value);
      return pair;
    }));
    drawPhases(byId("phases"), news.phases);
    drawChart(byId("chart-step"), seen.steps.map(([index, ms]) => [index, ms ?? NaN]));
    drawChart(byId("chart-loss"), seen.steps.map(([index, , loss]) => [index, loss ?? NaN]));
    drawChart(byId("chart-cores"), seen.telemetry.map(([at, cores]) => [at, cores ?? NaN]));
    drawChart(byId("chart-memory"), seen.telemetry.map(([at, , memory]) => [at, memory]));
    const gpu = seen.telemetry.map(([at, , , use]) => [at, use[0] ?? NaN]);
    byId("chart-gpu").parentElement.hidden = !gpu.some(([, use]) => Number.isFinite(use));
    drawChart(byId("chart-gpu"), gpu);
  };
  const poll = async () => {
    try {
      const response = await fetch(`${main.dataset.source}?${new URLSearchParams(offsets)}`);
      if (response.status === 404) return location.assign("/");
      const news = await response.json();
      if (news.problem) byId("stage").textContent = news.problem;
      else show(news);
      if (news.stage === "over") return location.reload();
    } catch {
      byId("stage").textContent = "ridgeline view does not answer; trying again each second";
    }
    setTimeout(poll, POLL_MS);
  };
  poll();
}

document.querySelectorAll("[data-name]").forEach(editInPlace);
if (byId("runs")) listPage();
if (byId("live")) livePage(byId("live"));
byId("delete-one")?.addEventListener("click", (event) => {
  deleteRuns([event.target.dataset.run], event.target.dataset.title);
});

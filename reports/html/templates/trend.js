// The plots of a history: one for each cell, across dates, runs or versions; and one of conformance.
"use strict";
(() => {
  const { el } = page;
  const MOST = 40; // plots that are drawn before the reader comes to them
  const across = document.getElementById("across");
  const outcomes = ["failed", "known-deviation", "advisory"];

  // The rows of a frame by the number of their series, sorted out once.
  const groups = {};
  function of(data, name, at) {
    if (!groups[name]) {
      groups[name] = new Map();
      for (const row of page.rows(data, name)) groups[name].has(row.series) ? groups[name].get(row.series).push(row) : groups[name].set(row.series, [row]);
    }
    return groups[name].get(at) || [];
  }

  // Dates are an axis only where every run has one.
  const axis = (rows, wanted) => (wanted === "time" && rows.some((row) => row.time === null) ? "run" : wanted);
  const version = (text, library) => text.split(", ").find((one) => one.startsWith(`${library} `))?.slice(library.length + 1) ?? "–";

  async function trend(figure) {
    const data = await page.ready;
    const at = Number(figure.dataset.at);
    const points = of(data, "points", at);
    const text = figure.querySelector("figcaption").textContent;
    const draw = () => {
      const chosen = across.selectedOptions[0];
      const by = axis(points, chosen.value);
      const rows = by === "version" ? points.map((row) => ({ ...row, version: version(row.versions, chosen.dataset.library) })) : points;
      const datasets = { points: rows, intervals: rows.filter((row) => row.low !== null), levels: of(data, "levels", at), changes: of(data, "changes", at) };
      const spec = { ...data.charts[by], description: text, datasets };
      spec.layer = spec.layer.filter((layer) => datasets[(layer.data ?? spec.data).name].length); // Vega warns of a layer without rows
      return page.embed(figure.querySelector(".drawing"), spec, text);
    };
    figure.querySelector("output").textContent = `${points.length} runs`;
    figure.querySelector(".csv").addEventListener("click", () => page.saveFrame(figure.id, points));
    figure.querySelector(".tools").hidden = false;
    figure.redraw = draw;
    await draw();
  }

  async function conformance(figure) {
    const data = await page.ready;
    const text = figure.querySelector("figcaption").textContent;
    const all = page.rows(data, "conformance");
    const select = el("select", { "aria-label": "implementation" }, ...[...new Set(all.map((row) => row.who))].map((who) => el("option", {}, who)));
    figure.querySelector(".choices").append(el("label", {}, "implementation ", select));
    let shown;
    const draw = () => {
      shown = all.filter((row) => row.who === select.value);
      const datasets = { outcomes: shown.flatMap((row) => outcomes.map((outcome) => ({ ...row, outcome: outcome.replace("-", " "), count: row[outcome] }))) };
      figure.querySelector("output").textContent = `${shown.length} runs`;
      return page.embed(figure.querySelector(".drawing"), { ...data.charts[`outcomes-${axis(shown, "time")}`], description: text, datasets }, text);
    };
    select.addEventListener("change", draw);
    figure.querySelector(".csv").addEventListener("click", () => page.saveFrame("outcomes", shown));
    figure.querySelector(".tools").hidden = false;
    await draw();
  }

  if (across) {
    across.closest("p").hidden = false;
    across.addEventListener("change", () => document.querySelectorAll(".trend").forEach((figure) => figure.redraw?.()));
  }
  page.drawWith((figure) => (figure.dataset.plot === "trend" ? trend(figure) : conformance(figure)), MOST);
})();

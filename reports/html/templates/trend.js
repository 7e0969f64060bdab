// The plots of a history: one for each cell, across dates, runs or versions; and one of conformance.
"use strict";
(() => {
  const { el } = page;
  const { number, named, plot } = page.vl;
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

  // What a plot goes across: dates, runs or versions.
  const ACROSS = {
    time: { field: "time", type: "temporal", title: null, axis: { labelOverlap: true, grid: false } },
    run: number("run", { title: "run", scale: { nice: false, zero: false } }),
    version: named("version", { title: null, sort: null, axis: { labelAngle: 0, labelOverlap: true } }),
  };
  const HEIGHT = 200; // half that of a plot of many implementations: there is one for each cell
  const TITLE = "Median time of a call, ms";
  const TIME = number("milliseconds", { title: TITLE, scale: { zero: false }, axis: { tickCount: 5 } });
  const TIPS = [
    number("milliseconds", { title: "median, ms" }), number("low", { title: "95 % from, ms" }), number("high", { title: "95 % to, ms" }),
    named("when", { title: "date" }), named("file", { title: "file" }), named("versions", { title: "versions" }),
  ];
  const CHANGE_TIPS = [
    number("ratio", { title: "new ÷ old", format: ".3~g" }), number("before", { title: "before, ms" }), number("after", { title: "after, ms" }),
    named("when", { title: "date" }), named("file", { title: "first file" }), named("versions", { title: "versions that changed" }),
  ];

  // Runs with their intervals, the level between two changes, and the changes with their ratio; a layer for each frame that has rows, of others Vega warns.
  function spec(by, datasets) {
    const x = ACROSS[by];
    const layer = (name, mark, encoding) => (datasets[name].length ? [{ data: { name }, mark, encoding: { x, ...encoding } }] : []);
    const change = { color: { condition: { test: "datum.ratio > 1", value: "var(--failed)" }, value: "var(--passed)" }, tooltip: CHANGE_TIPS };
    return plot(HEIGHT, { layer: [
      ...layer("intervals", { type: "area", opacity: 0.2, color: "var(--c0)" }, { y: number("low"), y2: { field: "high" } }),
      ...layer("points", { type: "line", strokeWidth: 1, opacity: 0.5, color: "var(--c0)" }, { y: TIME }),
      ...layer("levels", { type: "rule", strokeWidth: 2, color: "var(--ink)" }, { x2: { field: `${by}_end` }, y: TIME }),
      ...layer("points", { type: "point", filled: true, size: 22, opacity: 0.8, color: "var(--c0)" }, { y: TIME, tooltip: TIPS }),
      ...layer("changes", { type: "rule", strokeWidth: 2, strokeDash: [5, 4] }, change),
      ...layer("changes", { type: "text", align: "left", baseline: "top", dx: 5, fontSize: 12, fontWeight: "bold" }, { ...change, text: named("text"), y: { value: 0 } }),
    ] });
  }

  // Runs by version, in the order in which versions came, with the median of each.
  const BY_VERSION = plot(HEIGHT, { data: { name: "points" }, encoding: { x: ACROSS.version }, layer: [
    { mark: { type: "point", filled: true, size: 22, opacity: 0.4, color: "var(--c0)" }, encoding: { y: TIME, tooltip: TIPS } },
    {
      mark: { type: "tick", thickness: 2, color: "var(--ink)" },
      encoding: { y: number("milliseconds", { aggregate: "median", title: TITLE }), tooltip: [named("version"), number("milliseconds", { aggregate: "median" }), { aggregate: "count", type: "quantitative", title: "runs" }] },
    },
  ] });

  // Results that are not as the spec has them, by run; counts have no label between two whole numbers.
  const domain = outcomes.map((outcome) => outcome.replace("-", " "));
  const ofOutcomes = (by) => plot(HEIGHT, {
    data: { name: "outcomes" },
    mark: { type: "line", interpolate: "step-after", point: { size: 30, opacity: 1 } },
    encoding: {
      x: ACROSS[by],
      y: number("count", { title: "Results", scale: { zero: true }, axis: { labelExpr: "datum.value % 1 ? '' : datum.label" } }),
      color: named("outcome", { scale: { domain, range: outcomes.map((outcome) => `var(--${outcome})`) }, legend: { title: null, orient: "top", symbolOpacity: 1 } }),
      shape: named("outcome", { scale: { domain, range: ["circle", "square", "triangle-up"] } }),
      tooltip: [...["outcome", "count", "passed", "unsupported", "file"].map((name) => named(name)), named("when", { title: "date" })],
    },
  });

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
      const drawn = by === "version" ? BY_VERSION : spec(by, datasets);
      return page.embed(figure.querySelector(".drawing"), { ...drawn, description: text, datasets }, text);
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
      const datasets = { outcomes: shown.flatMap((row) => outcomes.map((outcome, at) => ({ ...row, outcome: domain[at], count: row[outcome] }))) };
      figure.querySelector("output").textContent = `${shown.length} runs`;
      return page.embed(figure.querySelector(".drawing"), { ...ofOutcomes(axis(shown, "time")), description: text, datasets }, text);
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

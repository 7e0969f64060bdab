// The plots of the report: each for the group that is chosen; the legend highlights by name.
"use strict";
(() => {
  const { el } = page;
  const { number, named, plot: fitting } = page.vl;
  const SVG = "http://www.w3.org/2000/svg";
  const PATHS = ["M6 1a5 5 0 1 0 .01 0z", "M2 2h8v8H2z", "M6 1l5 9H1z", "M6 0l4 6-4 6-4-6z", "M4 1h4v3h3v4H8v3H4V8H1V4h3z", "M1 2h10L6 11z"];
  const COLOURS = 10;
  const NAMED = 10; // names that a legend shows at first, the best ones
  const GROUP = ["family", "device", "dtype"];
  // What each plot is of, and what the reader chooses.
  const PLOTS = {
    time: { frame: "points", choose: GROUP, guides: "milliseconds" },
    memory: { frame: "points", choose: GROUP, guides: "memory" },
    frontier: { frame: "points", choose: ["workload", "device", "dtype"] },
    accuracy: { frame: "accuracy", choose: ["device", "dtype"] },
  };
  const FIRST = ["prefill-b1h8d64s4096-causal", "prefill-b1h8d64s*-causal", "prefill-b1h8d64s4096", "prefill-b1h8d64s*", "float32", "cpu"];

  // The cells that have a point, with what its tip says: made of the cells once.
  const points = (data) => (data.points ??= page.rows(data, "bench").filter((row) => row.outcome === "timed" && row.median !== null).map((row) => ({
    ...row, milliseconds: row.median * 1e3, low: (row.interval_low ?? row.median) * 1e3, high: (row.interval_high ?? row.median) * 1e3, memory: row.memory > 0 ? row.memory : null,
  })));

  // The same implementation has the same colour and shape in every plot.
  const looks = (data) => {
    const names = [...new Set([...page.rows(data, "bench"), ...page.rows(data, "conformance")].map((r) => r.implementation))];
    return Object.fromEntries(names.map((name, at) => [name, [at % COLOURS, (at + Math.floor(at / COLOURS)) % PATHS.length]]));
  };
  const SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down"];

  function mark([colour, shape]) {
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "0 0 12 12");
    svg.setAttribute("aria-hidden", "true");
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", PATHS[shape]);
    path.setAttribute("fill", `var(--c${colour})`);
    svg.append(path);
    return svg;
  }

  // The selects narrow each other: a value of the first decides what the others offer.
  function choices(figure, plot, rows, draw, titles) {
    const place = figure.querySelector(".choices");
    const selects = plot.choose.map((name) => {
      const select = el("select", { name, "aria-label": name });
      select.addEventListener("change", () => { fill(plot.choose.indexOf(name) + 1); draw(); });
      place.append(el("label", {}, `${name} `, select), " ");
      return select;
    });
    const fits = (row, count) => plot.choose.slice(0, count).every((name, at) => String(row[name]) === selects[at].value);
    function fill(from) {
      for (let at = from; at < selects.length; at++) {
        const before = selects[at].value;
        const values = [...new Set(rows.filter((row) => fits(row, at)).map((row) => String(row[plot.choose[at]])))];
        selects[at].replaceChildren(...values.map((value) => el("option", { value }, titles[value] ? `${titles[value]} (${value})` : value)));
        selects[at].value = [before, ...FIRST, values[0]].find((value) => values.includes(value));
      }
    }
    fill(0);
    return (list) => list.filter((row) => plot.choose.every((name, at) => !(name in row) || String(row[name]) === selects[at].value));
  }

  // On a logarithmic axis the powers of ten stand out.
  const POWER = "abs(log(datum.value) / LN10 - round(log(datum.value) / LN10)) < 1e-6";
  const logarithmic = (field, title, scale, format = "~g") => number(field, { title, scale: { type: "log", ...scale }, axis: { format, labelSeparation: 4, gridOpacity: { condition: { test: POWER, value: 1 }, value: 0.25 } } });

  // What the reader picked in the legend stays, the others fade.
  const faded = (full) => ({ condition: { test: "length(focus) == 0 || indexof(focus, datum.implementation) >= 0", value: full }, value: 0.08 });
  const params = [{ name: "focus", value: [] }];

  const TIPS = [
    ...["implementation", "workload", "dtype"].map((name) => named(name, { title: name })),
    number("milliseconds", { title: "median, ms" }), number("low", { title: "95 % from, ms" }), number("high", { title: "95 % to, ms" }),
    number("gflops", { title: "GFLOP/s" }), number("memory", { title: "memory, bytes" }), number("share", { title: "share of bound" }),
  ];

  // Lines beside the measured ones; the name of each stands at the end of it where those leave room.
  const GUIDES = { data: { name: "guides" }, encoding: { x: number("S"), y: number("value") } };
  const GUIDE_LINES = { ...GUIDES, mark: { type: "line", strokeDash: [5, 4], strokeWidth: 1.5, color: "var(--guide)" }, encoding: { ...GUIDES.encoding, detail: named("name") } };
  const LEFT = "datum.label == 'left'";
  const GUIDE_NAMES = {
    ...GUIDES,
    transform: [{ calculate: "datum.label ? datum.name : ''", as: "text" }],
    mark: { type: "text", align: { expr: `${LEFT} ? 'left' : 'right'` }, dx: { expr: `${LEFT} ? 8 : -8` }, dy: -4, baseline: "bottom", fontSize: 11, color: "var(--soft)" },
    encoding: { ...GUIDES.encoding, text: named("text") },
  };

  // The specifications, by what is shown: colour and shape of the implementations, their number, the lengths that occur, and whether there are guides.
  function againstLength(y, { color, shape, lengths, guided }, intervals) {
    const x = number("S", { title: "Sequence length S", scale: { type: "log", base: 2, nice: false }, axis: { format: "d", values: lengths } });
    const cells = { data: { name: "cells" } };
    return fitting(intervals ? 300 : 380, { params, layer: [
      ...(guided ? [GUIDE_LINES, GUIDE_NAMES] : []),
      { ...cells, mark: { type: "line", strokeWidth: 1.5 }, encoding: { x, y, color, opacity: faded(0.9) } },
      ...(intervals ? [{ ...cells, mark: { type: "rule", strokeWidth: 2 }, encoding: { x, y: number("low"), y2: { field: "high" }, color, opacity: faded(0.7) } }] : []),
      { ...cells, mark: { type: "point", filled: true, size: 45 }, encoding: { x, y, color, shape, opacity: faded(1), tooltip: TIPS } },
    ] });
  }

  const OPTIMAL = [{ filter: "datum.optimal == 'True'" }];
  const PROFILES = ["wide", "fused", "storage"];
  const SPECS = {
    time: (of) => againstLength(logarithmic("milliseconds", "Median time of a call, ms"), of, true),
    memory: (of) => againstLength(logarithmic("memory", "Peak memory beyond the inputs, bytes", {}, "~s"), of, false),
    frontier: ({ color, shape }) => fitting(380, {
      params,
      data: { name: "cells" },
      encoding: {
        x: logarithmic("milliseconds", "Median time of a call, ms", { nice: false, padding: 30 }),
        y: logarithmic("share", "Worst error as a share of its bound", { nice: false, padding: 30 }),
      },
      layer: [
        { transform: OPTIMAL, mark: { type: "line", interpolate: "step-after", strokeDash: [5, 4], color: "var(--guide)" } },
        { mark: { type: "point", filled: true, size: 90 }, encoding: { color, shape, opacity: faded(1), tooltip: TIPS } },
        { transform: OPTIMAL, mark: { type: "text", align: "left", dx: 8, dy: -8, fontSize: 11, color: "var(--ink)" }, encoding: { text: named("implementation") } },
      ],
    }),
    accuracy: ({ count }) => {
      const y = named("implementation", { title: null, sort: { field: "worst", order: "descending" }, axis: { labelLimit: 150 } });
      const color = named("profile", { scale: { domain: PROFILES, range: PROFILES.map((_, at) => `var(--c${at})`) }, legend: { title: "declared profile", orient: "top", symbolOpacity: 1 } });
      const tooltip = [
        ...["implementation", "dtype", "profile"].map((name) => named(name, { title: name })), number("cases", { title: "cases" }),
        number("low", { title: "lower quartile" }), number("median", { title: "median" }), number("worst", { title: "worst" }), named("case", { title: "worst case" }),
      ];
      const rows = (mark, encoding) => ({ data: { name: "accuracy" }, mark, encoding: { y, color, tooltip, ...encoding } });
      return fitting(18 * count, { layer: [ // a width of its container needs a height in pixels
        { data: { name: "one" }, mark: { type: "rule", strokeDash: [5, 4], color: "var(--guide)" }, encoding: { x: number("value") } },
        rows({ type: "rule", strokeWidth: 3, opacity: 0.45 }, { x: logarithmic("low_at", "Error as a share of its bound"), x2: { field: "worst_at" } }),
        rows({ type: "tick", thickness: 2, size: 11 }, { x: number("median_at") }),
        rows({ type: "point", filled: true, size: 55, opacity: 1 }, { x: number("worst_at"), shape: named("profile", { scale: { domain: PROFILES, range: SHAPES.slice(0, 3) } }) }),
      ] });
    },
  };

  async function start(figure) {
    const data = await page.ready;
    const name = figure.dataset.plot;
    const plot = PLOTS[name];
    const look = looks(data);
    const all = plot.frame === "points" ? points(data) : page.rows(data, plot.frame);
    const text = figure.querySelector("figcaption").textContent;
    const drawing = figure.querySelector(".drawing");
    const legend = figure.querySelector(".names");
    let pick, shown = [];

    async function draw() {
      shown = pick(all);
      if (name === "memory") shown = shown.filter((row) => row.memory !== null);
      if (name === "frontier") shown = shown.filter((row) => row.share > 0);
      if (plot.guides) shown.sort((x, y) => y.S - x.S || x[plot.guides] - y[plot.guides]); // the best at the longest come first
      const names = [...new Set(shown.map((row) => row.implementation))];
      const lengths = [...new Set(shown.map((row) => row.S))].sort((a, b) => a - b);
      const guides = plot.guides ? pick(page.rows(data, "guides")).filter((row) => row.quantity === plot.guides) : [];
      const looked = (range) => named("implementation", { scale: { domain: names, range: names.map(range) }, legend: null });
      const color = looked((one) => `var(--c${look[one][0]})`), shape = looked((one) => SHAPES[look[one][1]]);
      const spec = { ...SPECS[name]({ color, shape, lengths, count: names.length, guided: guides.length > 0 }), description: text, datasets: { [plot.frame === "points" ? "cells" : "accuracy"]: shown, guides, one: [{ value: 1 }] } };
      const view = await page.embed(drawing, spec, text);
      const count = plot.frame === "points" ? `${shown.length} cells` : `${shown.length} implementations`;
      figure.querySelector("output").textContent = count;
      view.addEventListener("click", (_, item) => {
        const row = item && item.datum;
        if (row && row.workload && row.implementation) location.hash = page.link("cell", row.implementation, row.device, row.dtype, row.workload);
        else if (row && row.case) location.hash = page.link("result", row.implementation, row.device, row.dtype, row.case);
      });
      if (plot.frame === "points") highlight(view, names);
    }

    function highlight(view, names) {
      const pinned = new Set();
      const show = (extra) => view.signal("focus", extra ? [...pinned, extra] : [...pinned]).run();
      const buttons = names.map((one) => {
        const button = el("button", { type: "button", "aria-pressed": "false" }, mark(look[one]), one);
        button.addEventListener("click", () => { pinned.has(one) ? pinned.delete(one) : pinned.add(one); button.setAttribute("aria-pressed", String(pinned.has(one))); show(); });
        button.addEventListener("mouseenter", () => show(one));
        button.addEventListener("mouseleave", () => show());
        return button;
      });
      legend.replaceChildren(...buttons.slice(0, NAMED));
      if (buttons.length <= NAMED) return;
      const more = el("button", { type: "button", class: "others" }, `and ${buttons.length - NAMED} more`);
      more.addEventListener("click", () => more.replaceWith(...buttons.slice(NAMED)));
      legend.append(more);
    }

    pick = choices(figure, plot, all, draw, data.titles);
    figure.querySelector(".csv").addEventListener("click", () => page.saveFrame(name, shown));
    figure.querySelector(".tools").hidden = false;
    await draw();
  }

  page.drawWith(start);
})();

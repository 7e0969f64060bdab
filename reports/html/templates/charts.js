// The plots of the report: each for the group that is chosen; the legend highlights by name.
"use strict";
(() => {
  const { el } = page;
  const SVG = "http://www.w3.org/2000/svg";
  const PATHS = ["M6 1a5 5 0 1 0 .01 0z", "M2 2h8v8H2z", "M6 1l5 9H1z", "M6 0l4 6-4 6-4-6z", "M4 1h4v3h3v4H8v3H4V8H1V4h3z", "M1 2h10L6 11z"];
  const COLOURS = 10;
  const GROUP = ["family", "device", "dtype"];
  // What each plot is of, and what the reader chooses.
  const PLOTS = {
    time: { frame: "points", choose: GROUP, guides: "milliseconds" },
    memory: { frame: "points", choose: GROUP, guides: "memory" },
    frontier: { frame: "points", choose: ["workload", "device", "dtype"] },
    accuracy: { frame: "accuracy", choose: ["device", "dtype"] },
  };
  const FIRST = ["prefill-b1h8d64s4096-causal", "prefill-b1h8d64s*-causal", "prefill-b1h8d64s4096", "prefill-b1h8d64s*", "float32", "cpu"];

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
  function choices(figure, plot, rows, draw) {
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
        selects[at].replaceChildren(...values.map((value) => el("option", {}, value)));
        selects[at].value = [before, ...FIRST, values[0]].find((value) => values.includes(value));
      }
    }
    fill(0);
    return (list) => list.filter((row) => plot.choose.every((name, at) => !(name in row) || String(row[name]) === selects[at].value));
  }

  // With the colours and shapes of these implementations, and the lengths that occur as ticks.
  function fitted(spec, names, look, lengths) {
    const text = JSON.stringify(spec, (key, value) => {
      if (value && value.field === "implementation" && value.scale && key === "color") return { ...value, scale: { domain: names, range: names.map((n) => `var(--c${look[n][0]})`) } };
      if (value && value.field === "implementation" && value.scale && key === "shape") return { ...value, scale: { domain: names, range: names.map((n) => SHAPES[look[n][1]]) } };
      if (value && value.field === "S" && value.axis) return { ...value, axis: { ...value.axis, values: lengths } };
      return value;
    });
    return JSON.parse(text);
  }

  async function start(figure) {
    const data = await page.ready;
    const name = figure.dataset.plot;
    const plot = PLOTS[name];
    const look = looks(data);
    const all = page.rows(data, plot.frame);
    const text = figure.querySelector("figcaption").textContent;
    const drawing = figure.querySelector(".drawing");
    const legend = figure.querySelector(".names");
    let pick, shown = [];

    async function draw() {
      shown = pick(all);
      if (name === "memory") shown = shown.filter((row) => row.memory !== null);
      if (name === "frontier") shown = shown.filter((row) => row.share > 0);
      const names = [...new Set(shown.map((row) => row.implementation))];
      const lengths = [...new Set(shown.map((row) => row.S))].sort((a, b) => a - b);
      const guides = plot.guides ? pick(page.rows(data, "guides")).filter((row) => row.quantity === plot.guides) : [];
      const spec = { ...fitted(data.charts[name], names, look, lengths), description: text, datasets: { [plot.frame === "points" ? "cells" : "accuracy"]: shown, guides, one: [{ value: 1 }] } };
      if (!guides.length) spec.layer = spec.layer.filter((layer) => (layer.data || {}).name !== "guides");
      if (spec.height.step) spec.height = spec.height.step * names.length; // a width of its container needs a height in pixels
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
      legend.replaceChildren(...names.map((one) => {
        const button = el("button", { type: "button", "aria-pressed": "false" }, mark(look[one]), one);
        button.addEventListener("click", () => { pinned.has(one) ? pinned.delete(one) : pinned.add(one); button.setAttribute("aria-pressed", String(pinned.has(one))); show(); });
        button.addEventListener("mouseenter", () => show(one));
        button.addEventListener("mouseleave", () => show());
        return button;
      }));
    }

    pick = choices(figure, plot, all, draw);
    figure.querySelector(".csv").addEventListener("click", () => page.saveFrame(name, shown));
    figure.querySelector(".tools").hidden = false;
    await draw();
  }

  page.drawWith(start);
})();

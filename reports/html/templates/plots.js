// How plots are drawn: with Vega, unpacked for the first of them, and those that come into view first.
"use strict";
(() => {
  const { el } = page;
  const CONFIG = {
    background: null,
    font: "system-ui, sans-serif",
    axis: { labelColor: "var(--soft)", titleColor: "var(--soft)", gridColor: "var(--line)", domainColor: "var(--line)", tickColor: "var(--line)", labelFontSize: 11, titleFontSize: 12, titleFontWeight: "normal" },
    legend: { labelColor: "var(--ink)", titleColor: "var(--soft)", labelFontSize: 12 },
  };

  // Parts of specifications in Vega-Lite: a number or a name of a row, and a plot as wide as its place.
  page.vl = {
    number: (field, more) => ({ field, type: "quantitative", ...more }),
    named: (field, more) => ({ field, type: "nominal", ...more }),
    plot: (height, more) => ({ width: "container", height, autosize: { type: "fit-x", contains: "padding" }, config: { view: { stroke: null } }, ...more }),
  };

  // Vega is unpacked for the first plot.  The page's policy knows the hash of its text, and lets no other script run.
  let vega;
  const loaded = () => (vega ??= page.unpacked("vega").then((text) => { const script = el("script"); script.textContent = text; document.head.append(script); }));

  // Draw a specification; one image to a screen reader, not hundreds of marks, for the tables have the numbers.
  page.embed = async (drawing, spec, text) => {
    await loaded();
    drawing.spec = spec;
    const { view } = await vegaEmbed(drawing, spec, { renderer: "svg", actions: false, ast: true, config: CONFIG });
    const svg = drawing.querySelector("svg");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `${text} The tables of this page have the numbers.`);
    return view;
  };

  // What is in view is drawn first, the others when there is time, so that a printed page has them all; but of a page
  // with more than some hundred plots only as many, and the rest as the reader comes to them.
  page.drawWith = (start, most = Infinity) => {
    const figures = new Set(document.querySelectorAll(".plot"));
    const later = window.requestIdleCallback || ((call) => setTimeout(call, 50));
    async function drawn(figure) {
      if (!figures.delete(figure)) return;
      try { await start(figure); page.land(); } catch (error) { console.error(`the plot ${figure.dataset.plot} cannot be drawn: ${error}`); }
    }
    const seen = new IntersectionObserver((entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => drawn(entry.target)), { rootMargin: "300px" });
    figures.forEach((figure) => seen.observe(figure));
    const next = () => later(async () => { for (const figure of figures) { if (most-- <= 0) return; await drawn(figure); return next(); } });
    page.ready.then(next);
  };
})();

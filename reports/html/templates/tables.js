// Tables: sorted by their headings, filtered by words, saved as CSV; and the tips of cells.
"use strict";
(() => {
  const MANY = 500; // rows that are laid out unless all are asked for
  const valueOf = (cell) => (cell.dataset.v !== undefined ? cell.dataset.v : cell.textContent.trim());
  const compare = new Intl.Collator("en", { numeric: true, sensitivity: "base" }).compare;

  function sort(view, at) {
    const heads = [...view.querySelectorAll("thead th")];
    const number = heads[at].classList.contains("n") || heads[at].classList.contains("narrow");
    const before = heads[at].getAttribute("aria-sort");
    const direction = before ? (before === "ascending" ? "descending" : "ascending") : number && heads[at].classList.contains("narrow") ? "descending" : "ascending";
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[at].setAttribute("aria-sort", direction);
    const body = view.querySelector("tbody");
    const sign = direction === "ascending" ? 1 : -1;
    const keyed = [...body.rows].map((row) => ({ row, key: valueOf(row.cells[at]) }));
    const numeric = keyed.every(({ key }) => key === "" || !Number.isNaN(Number(key)));
    keyed.sort((a, b) => {
      if (a.key === "" || b.key === "") return (a.key === "") - (b.key === ""); // what is missing comes last
      return sign * (numeric ? Number(a.key) - Number(b.key) : compare(a.key, b.key));
    });
    body.replaceChildren(...keyed.map(({ row }) => row));
    filter(view);
  }

  function filter(view) {
    const [rowsBy, columnsBy] = [...view.querySelectorAll("input[type=search]")].map((input) => input.value.toLowerCase().split(/\s+/).filter(Boolean));
    const rows = [...view.querySelector("tbody").rows];
    let found = 0;
    for (const row of rows) {
      if (rowsBy.length) row.words ??= [row.textContent, ...[...row.querySelectorAll("[data-tip]")].map((one) => one.dataset.tip)].join(" ").toLowerCase();
      const fits = rowsBy.every((word) => row.words.includes(word));
      row.dataset.fits = fits ? "yes" : "no";
      row.hidden = !fits || (found >= MANY && !view.dataset.all);
      found += fits;
    }
    if (columnsBy) {
      const some = columnsBy.flatMap((word) => word.split(",")).filter(Boolean);
      const out = [...view.querySelectorAll("thead th")].map((head) => head.classList.contains("pick") && some.length > 0 && !some.some((word) => head.textContent.toLowerCase().includes(word)));
      for (const row of view.querySelectorAll("tr")) [...row.cells].forEach((cell, at) => (cell.hidden = out[at]));
    }
    const more = found > MANY && !view.dataset.all;
    view.querySelector("output").textContent = (found === rows.length ? `${found} rows` : `${found} of ${rows.length} rows`) + (more ? `, the first ${MANY} shown` : "");
    view.querySelector(".all").hidden = !more;
  }

  function csv(view) {
    const rows = [...view.querySelectorAll("tr")].filter((row) => row.dataset.fits !== "no");
    page.save(view.dataset.name, rows.map((row) => [...row.cells].map((cell) => (row.parentNode.tagName === "THEAD" ? cell.textContent.trim() : valueOf(cell)))));
  }

  // What the data say of a table's cells, by column: values to sort and save, tips, links, and words for symbols.
  const ADD = {
    v: (cell, value) => { cell.dataset.v = value; },
    tip: (cell, text) => { (cell.firstElementChild?.localName === "a" ? cell.firstElementChild : cell).dataset.tip = text; },
    link: (cell, href) => { const made = page.el("a", { href }); made.append(...cell.childNodes); cell.append(made); },
    spoken: (cell, text) => { cell.firstElementChild?.localName === "a" ? cell.firstElementChild.setAttribute("aria-label", text) : cell.prepend(page.el("span", { class: "sr" }, text)); },
  };
  function complete(view, extras) {
    const rows = [...view.querySelector("tbody").rows];
    for (const [at, given] of Object.entries(extras || {})) {
      for (const name of ["v", "link", "tip", "spoken"]) {
        given[name]?.forEach((value, row) => { if (value !== null) ADD[name](rows[row].cells[at], value); });
      }
    }
    view.querySelectorAll("thead button").forEach((button) => { button.disabled = false; });
  }
  page.ready.then((data) => { for (const view of document.querySelectorAll(".view")) complete(view, data.tables[view.dataset.name]); });

  for (const view of document.querySelectorAll(".view")) {
    view.querySelectorAll("thead th").forEach((head, at) => {
      if (view.classList.contains("matrix") && at > (view.classList.contains("words") ? 1 : 0)) head.classList.add("pick");
      head.querySelector("button").addEventListener("click", () => sort(view, at));
    });
    view.querySelectorAll("input[type=search]").forEach((input) => input.addEventListener("input", () => filter(view)));
    view.querySelector(".all").addEventListener("click", () => { view.dataset.all = "yes"; filter(view); });
    view.querySelector(".csv").addEventListener("click", () => csv(view));
    view.querySelector(".tools").hidden = false;
    filter(view);
  }

  const tip = document.getElementById("tip");
  page.tip = (text, at) => {
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    tip.style.left = `${Math.max(4, Math.min(at.left, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${at.bottom + tip.offsetHeight + 8 > innerHeight ? at.top - tip.offsetHeight - 4 : at.bottom + 4}px`;
  };
  const show = (event) => {
    const target = event.target.closest?.("[data-tip]");
    if (target) (target.closest("dialog") || document.body).append(tip); // a tip outside an open dialog would lie behind it
    page.tip(target?.dataset.tip, target?.getBoundingClientRect());
  };
  document.addEventListener("mouseover", show);
  document.addEventListener("focusin", show);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });
  document.addEventListener("scroll", () => { tip.hidden = true; }, { capture: true, passive: true });
})();

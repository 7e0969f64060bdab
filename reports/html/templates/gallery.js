// The gallery: rows by use, word and order; and the failures behind a cell, which its address opens.
"use strict";
(() => {
  const { el } = page;
  const dialog = document.getElementById("details");
  const title = document.getElementById("details-h");
  const body = document.getElementById("details-body");
  const filters = document.querySelector(".filters");
  const table = document.querySelector(".heat tbody");
  const rows = [...table.rows];
  const [search, order, output] = ["input", "select", "output"].map((name) => filters.querySelector(name));
  const ORDERS = {
    name: (a, b) => a.dataset.name.localeCompare(b.dataset.name),
    failed: (a, b) => a.dataset.failed - b.dataset.failed || b.dataset.passed - a.dataset.passed,
    passed: (a, b) => b.dataset.passed - a.dataset.passed,
  };
  const FORMER = { "Every-call-alike": "Call-consistency", "Refuses-what-is-wrong": "Input-validation" }; // groups in earlier addresses
  let use = "all";

  function show() {
    const words = search.value.toLowerCase().split(/[\s,]+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const text = row.cells[0].textContent.toLowerCase();
      row.hidden = (use !== "all" && !row.dataset.uses.split(" ").includes(use)) || (words.length > 0 && !words.some((word) => text.includes(word)));
      count += !row.hidden;
    }
    table.replaceChildren(...rows.sort(ORDERS[order.value]));
    output.textContent = count === rows.length ? `${count}` : `${count} of ${rows.length}`;
  }

  for (const button of filters.querySelectorAll("[data-use]")) {
    button.addEventListener("click", () => {
      use = button.dataset.use;
      filters.querySelectorAll("[data-use]").forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
      show();
    });
  }
  search.addEventListener("input", show);
  order.addEventListener("change", show);
  filters.hidden = false;
  show();

  const spoken = (one) => el("p", { class: "finding" }, `${one.what.replaceAll("`", "")}. `, el("a", { class: `label ${one.look}`, href: one.link, rel: "noreferrer" }, one.says), one.quote ? el("q", {}, one.quote) : null);

  function failure(name, one, isOpen) {
    const made = el("details", { class: "case" }, el("summary", {}, el("strong", {}, one.case), ` ${one.reason}`));
    const fill = () => {
      if (!made.open || made.children.length > 1) return;
      const command = `attention-conformance gallery run ${name} --case ${one.case}`;
      made.append(el("pre", {}, one.message || one.reason), el("p", {}, "Rerun, with a script that reproduces it: ", el("code", {}, command)));
    };
    made.addEventListener("toggle", fill);
    if (isOpen) { made.open = true; fill(); }
    return made;
  }

  async function open() {
    const [name, given] = location.hash.slice(1).split("/").map(decodeURIComponent);
    const group = FORMER[given] || given;
    if (!group) return dialog.open && dialog.close();
    const { failures } = await page.ready;
    const all = failures[name] || [];
    const some = all.filter((one) => one.group && one.group.replaceAll(" ", "-") === group);
    const findings = (all.find((one) => one.findings) || { findings: [] }).findings;
    const about = findings.filter((_, at) => some.some((one) => one.found.includes(at)));
    title.textContent = `${name}: ${group.replaceAll("-", " ").toLowerCase()}`;
    body.replaceChildren(...(some.length ? [...about.map(spoken), ...some.map((one, at) => failure(name, one, at === 0))] : [el("p", {}, "This page has no such failure.")]));
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    title.focus();
  }
  dialog.addEventListener("close", () => { if (location.hash.includes("/")) history.replaceState(null, "", "#"); });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  addEventListener("hashchange", open);
  open();
})();

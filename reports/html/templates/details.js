// The details that a fragment opens: #clause/…, #result/…, #cell/…, #fault/…  A link to any of them can be sent.
"use strict";
(() => {
  const { el, link } = page;
  const dialog = document.getElementById("details");
  const title = document.getElementById("details-h");
  const body = document.getElementById("details-body");
  const SERIOUS = ["failed", "known-deviation", "advisory", "passed", "unsupported", "not-applicable"];
  const SYMBOLS = { failed: "✗", "known-deviation": "≠", advisory: "!", passed: "✓", unsupported: "–", "not-applicable": "∅" };
  const WORDS = { "known-deviation": "known deviations", advisory: "do not follow a SHOULD" };
  const FORMER = { "Every call alike": "Call consistency", "Refuses what is wrong": "Input validation" }; // groups in earlier addresses
  const MANY = 200; // rows that are shown at first; a button shows the others

  const badge = (outcome) => el("span", { class: outcome }, `${SYMBOLS[outcome] || ""} ${outcome.replace("-", " ")}`);
  const a = (text, ...parts) => el("a", { href: link(...parts) }, text);
  const digits = (value) => (value === null || value === "" ? "–" : value === "inf" ? "∞" : typeof value === "number" ? Number(value.toPrecision(4)).toString() : value);
  const command = (r) => ["attention-conformance check", quoted(r.implementation), "--device", quoted(r.device), "--dtype", quoted(r.dtype), "--case", quoted(r.case)].join(" ");
  const milliseconds = (seconds) => `${digits(seconds * 1e3)} ms`;
  const whole = (count) => Math.round(count).toLocaleString("en");
  // What the details of a cell show, in this order.
  const FIELDS = [
    ["outcome", "outcome"], ["clause", "clause"], ["reason", "reason"], ["median", "median", milliseconds],
    ["seconds", "median of the equal calls, not ranked", milliseconds], ["calls", "equal calls", whole],
    ["interval_low", "95 % interval from", milliseconds], ["interval_high", "to", milliseconds], ["min", "smallest sample", milliseconds], ["max", "largest sample", milliseconds],
    ["rounds", "samples", whole], ["process_runs", "process runs", whole], ["stopped", "stopped by"], ["gflops", "GFLOP/s", digits], ["tokens_per_second", "tokens per second", digits],
    ["memory", "memory beyond the inputs, bytes", whole], ["memory_method", "measured by"], ["share", "worst error, share of bound", digits], ["profile", "profile"],
    ["flops", "operations", whole], ["bytes_least", "minimum of bytes moved", whole], ["intensity", "operations per byte", digits], ["bound_by", "limited by"], ["share_of_limit", "share of that limit", digits], ["share_of_peak", "share of the matmul peak", digits],
    ["prepare_seconds", "prepare", milliseconds], ["first_call_seconds", "first call", milliseconds], ["operator", "operator"], ["family", "family"],
  ];
  const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
  // A result counts at the clause that it broke, and else at all of its case (as reports/model/tables.py has it).
  const counts = (r, clause) => (r.broken ? r.broken === clause : ` ${r.clauses} `.includes(` ${clause} `));

  function table(titles, rows, numbers = []) {
    const head = el("tr", {}, ...titles.map((t, i) => el("th", { scope: "col", class: numbers.includes(i) ? "n" : "" }, t)));
    const made = (row) => el("tr", {}, ...row.map((cell, i) => el("td", { class: numbers.includes(i) ? "n" : "" }, cell)));
    const tbody = el("tbody", {}, ...rows.slice(0, MANY).map(made));
    const whole = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": titles.join(", ") }, el("table", {}, el("thead", {}, head), tbody));
    if (rows.length <= MANY) return whole;
    const more = el("button", { type: "button", class: "copy" }, `Show the other ${rows.length - MANY}`);
    more.addEventListener("click", () => { tbody.append(...rows.slice(MANY).map(made)); more.remove(); });
    return el("div", {}, whole, more);
  }

  function copied(text) {
    const button = el("button", { type: "button", class: "copy" }, "Copy");
    button.addEventListener("click", async () => {
      try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch { getSelection().selectAllChildren(code); button.textContent = "Selected: copy it"; }
    });
    const code = el("code", {}, text);
    return el("p", {}, code, " ", button);
  }

  function download(name, rows) {
    const button = el("button", { type: "button", class: "csv" }, `CSV of these ${rows.length} results`);
    button.addEventListener("click", () => page.saveFrame(name, rows));
    return el("p", {}, button);
  }

  function sentence(data, clause) {
    const found = data.clauses[clause];
    return found ? el("blockquote", {}, el("strong", {}, `${clause} ${found[0]} (${found[1]}). `), found[2]) : null;
  }

  function evidence(r) {
    const script = /^Script:\s*(.+)$/m.exec(r.message);
    return el("div", {},
      el("pre", {}, r.message || r.reason || "No message."),
      script ? el("p", {}, "Script that needs only the framework: ", el("code", {}, script[1])) : null,
      el("p", {}, "Rerun:"), copied(command(r)));
  }

  function clause(data, id, implementation, device) {
    const all = page.rows(data, "conformance").filter((r) => (implementation === undefined || (r.implementation === implementation && r.device === device)) && counts(r, id));
    const some = (outcome) => all.filter((r) => r.outcome === outcome);
    const numbers = SERIOUS.filter((o) => some(o).length).map((o) => `${some(o).length} ${WORDS[o] || o}`).join(", ") || "not run";
    const parts = [sentence(data, id), el("p", { class: "counts" }, `${numbers}.`)];
    const wrong = all.filter((r) => ["failed", "known-deviation", "advisory"].includes(r.outcome)).sort((x, y) => SERIOUS.indexOf(x.outcome) - SERIOUS.indexOf(y.outcome));
    const shown = (r, at) => {
      const summary = el("summary", {}, badge(r.outcome), ` ${implementation === undefined ? `${r.implementation} ${r.device} · ` : ""}${r.case} · ${r.dtype} · ${r.reason}`);
      const one = el("details", { class: "case" }, summary);
      const fill = () => { if (one.open && one.children.length === 1) one.append(evidence(r), el("p", {}, a("Link to this result", "result", r.implementation, r.device, r.dtype, r.case))); };
      one.addEventListener("toggle", fill);
      if (at === 0 && implementation !== undefined) { one.open = true; fill(); }
      return one;
    };
    parts.push(...wrong.slice(0, MANY).map(shown));
    if (wrong.length > MANY) {
      const more = el("button", { type: "button", class: "copy" }, `Show the other ${wrong.length - MANY}`);
      more.addEventListener("click", () => more.replaceWith(...wrong.slice(MANY).map((r) => shown(r))));
      parts.push(more);
    }
    const rows = (list) => list.map((r) => [a(r.case, "result", r.implementation, r.device, r.dtype, r.case), implementation === undefined ? r.implementation : r.dtype, implementation === undefined ? r.dtype : digits(r.share), r.outcome === "passed" ? r.profile : r.reason]);
    for (const outcome of ["passed", "unsupported", "not-applicable"]) {
      if (!some(outcome).length) continue;
      const fold = el("details", {}, el("summary", {}, badge(outcome), ` ${some(outcome).length} results`));
      const heads = implementation === undefined ? ["case", "implementation", "dtype"] : ["case", "dtype", "share of bound"];
      fold.addEventListener("toggle", () => { if (fold.children.length === 1) fold.append(table([...heads, outcome === "passed" ? "profile" : "reason"], rows(some(outcome)), implementation === undefined ? [] : [2])); });
      parts.push(fold);
    }
    if (all.length) parts.push(download(`${id}${implementation ? `-${implementation}` : ""}`, all));
    return [implementation === undefined ? id : `${implementation} on ${device}: ${id}`, parts, all.length || data.clauses[id]];
  }

  // A clause group on an implementation: what each of its clauses came to.
  function group(data, given, implementation, device) {
    const name = FORMER[given] || given;
    const some = page.rows(data, "conformance").filter((r) => r.implementation === implementation && r.device === device);
    const rows = Object.keys(data.clauses).filter((id) => data.groups[id] === name).map((id) => {
      const of = some.filter((r) => counts(r, id));
      const worst = SERIOUS.find((outcome) => of.some((r) => r.outcome === outcome));
      const numbers = SERIOUS.filter((o) => of.some((r) => r.outcome === o)).map((o) => `${of.filter((r) => r.outcome === o).length} ${WORDS[o] || o}`).join(", ");
      return worst && [a(`${id} ${data.clauses[id][0]}`, "clause", id, implementation, device), badge(worst), numbers];
    }).filter(Boolean);
    return [`${implementation} on ${device}: ${name}`, [table(["clause", "worst", "cases"], rows)], rows.length > 0];
  }

  function result(data, implementation, device, dtype, name) {
    const r = page.rows(data, "conformance").find((one) => one.implementation === implementation && one.device === device && one.dtype === dtype && one.case === name);
    if (!r) return [name, [], false];
    const clauses = (r.broken ? [r.broken] : r.clauses.split(" ")).filter(Boolean);
    const list = el("dl", {});
    const entry = (term, ...value) => list.append(el("dt", {}, term), el("dd", {}, ...value));
    entry("outcome", badge(r.outcome), r.failure ? `: ${r.failure}` : "");
    entry(r.broken ? "broken" : "clauses", ...clauses.flatMap((id) => [a(id, "clause", id, implementation, device), " "]));
    if (r.reason) entry("reason", r.reason);
    if (r.error_pattern) entry("looks like", r.error_pattern);
    if (r.share !== null && r.share !== "") entry("share of bound", digits(r.share), ` under profile ${r.profile}`);
    if (r.meets) entry("meets", r.meets);
    const caught = page.rows(data, "faults").filter((f) => f.case === name).length;
    if (caught) entry("catches", `${caught} of the known faults`);
    return [`${implementation} on ${device} in ${dtype}: ${name}`, [list, ...clauses.slice(0, 3).map((id) => sentence(data, id)), evidence(r)], true];
  }

  function cell(data, implementation, device, dtype, workload) {
    const r = page.rows(data, "bench").find((one) => one.implementation === implementation && one.device === device && one.dtype === dtype && one.workload === workload);
    if (!r) return [workload, [], false];
    const list = el("dl", {});
    for (const [name, label, form] of FIELDS) {
      const value = r[name];
      if (value !== null && value !== undefined && value !== "") list.append(el("dt", {}, label), el("dd", {}, (form || String)(value)));
    }
    const peers = page.rows(data, "bench").filter((one) => one.workload === workload && one.device === device && one.dtype === dtype && one.median !== null).sort((x, y) => x.median - y.median);
    const rows = peers.map((one) => [a(one.implementation, "cell", one.implementation, device, dtype, workload), digits(one.median * 1e3), digits(one.median / (r.median || peers[0].median)), one.memory === null ? "–" : whole(one.memory)]);
    const against = peers.length > 1 ? [el("h3", {}, "Compared with other implementations"), table(["implementation", "median, ms", r.median === null ? "÷ fastest" : "÷ this one", "memory, bytes"], rows, [1, 2, 3])] : [];
    const called = data.titles[workload] ? el("p", {}, data.titles[workload]) : null;
    return [`${implementation} on ${device} in ${dtype}: ${workload}`, [called, list, ...against], true];
  }

  function fault(data, name) {
    const found = data.faults[name];
    if (!found) return [name, [], false];
    const sources = Object.entries(found.sources).flatMap(([text, address]) => [address ? el("a", { href: address, rel: "noreferrer" }, text) : text, " · "]).slice(0, -1);
    const rows = page.rows(data, "faults").filter((f) => f.fault === name);
    return [found.title, [found.when ? el("p", {}, found.when) : null, el("p", {}, "Seen in: ", ...sources), sentence(data, found.clause), el("p", {}, `Caught by ${rows.length} cases, the smallest first:`), table(["case", "dtypes"], rows.map((f) => [f.case, f.dtypes]))], true];
  }

  const KINDS = { clause, group, result, cell, fault };

  async function open() {
    const [kind, ...parts] = location.hash.slice(1).split("/");
    if (!(kind in KINDS)) return dialog.open && dialog.close();
    let given;
    try { given = parts.map(decodeURIComponent); } catch { given = parts; }
    const data = await page.ready;
    const [heading, content, known] = KINDS[kind](data, ...given);
    title.textContent = heading;
    body.replaceChildren(...(known ? content.filter(Boolean) : [el("p", {}, "This page has no such record.")]));
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    title.focus();
  }

  // Closed, the page stays where it is, and the same link opens the details again.
  dialog.addEventListener("close", () => { if (location.hash.slice(1).split("/")[0] in KINDS) history.replaceState(null, "", "#"); });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  addEventListener("hashchange", open);
  open();
})();

// The data of the page: unpacked once, read by column; and the elements that are made of it, by text alone.
"use strict";
const page = {
  // The digits of base85, by the codes of their characters.
  digits: [..."0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%.()*+-;,=:?@^_`{|}~"].reduce((all, one, value) => { all[one.charCodeAt(0)] = value; return all; }, new Uint8Array(128)),
  // The text that an element has compressed.
  async unpacked(id) {
    const text = document.getElementById(id).textContent;
    const rest = (5 - (text.length % 5)) % 5;
    const whole = text + "~".repeat(rest);
    const padded = new DataView(new ArrayBuffer((whole.length / 5) * 4));
    for (let at = 0; at < whole.length; at += 5) {
      let value = 0;
      for (let place = 0; place < 5; place++) value = value * 85 + page.digits[whole.charCodeAt(at + place)];
      padded.setUint32((at / 5) * 4, value);
    }
    const bytes = padded.buffer.slice(0, padded.byteLength - rest);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  },
  // The rows of a frame as objects, made when they are first asked for.
  rows(data, name) {
    const frame = data.frames[name];
    if (!frame) return [];
    if (!frame.rows) {
      const columns = Object.entries(frame.columns).map(([key, c]) => [key, Array.isArray(c) ? (i) => c[i] : (i) => c.texts[c.codes[i]]]);
      frame.rows = Array.from({ length: frame.length }, (_, i) => Object.fromEntries(columns.map(([key, at]) => [key, at(i)])));
    }
    return frame.rows;
  },
  // An element; what is shown is always text, never markup.
  el(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) if (value !== undefined && value !== "") node.setAttribute(name, value);
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
  },
  link(kind, ...parts) {
    return `#${kind}/` + parts.map(encodeURIComponent).join("/");
  },
  // A file of rows; a text that a spreadsheet would take for a formula is marked as text.
  save(name, rows) {
    const quoted = (value) => {
      let text = value === null || value === undefined ? "" : String(value);
      const formula = /^[=+@\t\r]/.test(text) || (text[0] === "-" && Number.isNaN(Number(text)));
      if (typeof value === "string" && formula) text = "'" + text;
      return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    const text = rows.map((row) => row.map(quoted).join(",")).join("\r\n") + "\r\n";
    const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    page.el("a", { href: address, download: `${name}.csv` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  },
  saveFrame(name, rows) {
    const titles = Object.keys(rows[0] || {});
    page.save(name, [titles, ...rows.map((row) => titles.map((title) => row[title]))]);
  },
};
// A link lands where it points to, though tables and plots above it take their heights only as they are laid out:
// it is followed again until nothing moves, and after each plot until the reader does something.
page.landing = true;
page.land = (left = 20) => {
  const target = page.landing && /^#[\w-]+$/.test(location.hash) && document.querySelector(location.hash);
  if (!target) return;
  const before = target.getBoundingClientRect().top;
  target.scrollIntoView({ behavior: "instant" });
  requestAnimationFrame(() => { if (left && Math.abs(target.getBoundingClientRect().top - before) > 1) page.land(left - 1); });
};
for (const kind of ["wheel", "touchstart", "pointerdown", "keydown"]) addEventListener(kind, () => { page.landing = false; }, { passive: true, capture: true });
addEventListener("hashchange", () => { page.landing = true; page.land(); });
addEventListener("load", () => page.land());
page.ready = page.unpacked("data").then(JSON.parse);
page.ready.catch((error) => console.error(`the data of the page cannot be unpacked: ${error}`));

// The small matrix: what is under the pointer in the tip, and its clauses by a click.
"use strict";
(() => {
  const figure = document.getElementById("picture");
  if (!figure) return;
  const svg = figure.querySelector("svg");
  page.ready.then(({ picture: { left, high, rows } }) => {
    const under = (event) => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      const row = rows.find((one) => at.y >= one.y && at.y < one.y + high);
      const cell = row && row.cells[Math.floor((at.x - left) / row.wide)];
      return cell ? [cell[0], row.name, cell[1], cell[2]] : null;
    };
    svg.addEventListener("mousemove", (event) => {
      const found = under(event);
      page.tip(found && `${found[0]}, ${found[1]}: ${found[2]}`, new DOMRect(event.clientX, event.clientY, 0, 8));
    });
    svg.addEventListener("mouseleave", () => page.tip(""));
    svg.addEventListener("click", (event) => { const found = under(event); if (found && found[3]) location.hash = found[3]; });
  });
})();

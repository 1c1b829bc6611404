// Let the keyboard scroll tables and code that are wider than the page.
function makeFocusable() {
  const wide = ".md-typeset__scrollwrap:not([tabindex]), .md-typeset pre > code:not([tabindex])";
  for (const element of document.querySelectorAll(wide)) element.tabIndex = 0;
}

// On a phone, mark the tables that have sentences and are too wide: site.css shows each row as a list, which is read
// without scrolling sideways. Tables of figures stay tables, because their columns are compared.
const narrow = matchMedia("(max-width: 45em)");
function markWideTables() {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap")) {
    const table = box.querySelector("table");
    delete table.dataset.stacked;
    if (!narrow.matches || box.scrollWidth <= box.clientWidth) continue;
    const rows = [...table.tBodies].flatMap((body) => [...body.rows]);
    if (!rows.some((row) => [...row.cells].some((cell) => cell.textContent.length > 30))) continue;
    const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
    for (const row of rows) [...row.cells].forEach((cell, column) => (cell.dataset.head = heads[column]));
    table.dataset.stacked = "";
  }
}

function update() {
  makeFocusable();
  markWideTables();
}
new MutationObserver(update).observe(document.body, { childList: true, subtree: true });
addEventListener("resize", markWideTables);
addEventListener("load", markWideTables);
update();

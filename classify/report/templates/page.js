for (const button of document.querySelectorAll("table.sortable th button")) {
  button.addEventListener("click", () => {
    const header = button.parentElement;
    const body = header.closest("table").tBodies[0];
    const column = header.cellIndex;
    const falling = header.getAttribute("aria-sort") !== "descending";
    for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", falling ? "descending" : "ascending");
    const key = (row) => {
      const cell = row.cells[column];
      const text = cell.dataset.value ?? cell.textContent.trim();
      const number = Number(text.replaceAll(",", "").replace(/\s%$/, ""));
      return Number.isNaN(number) ? text : number;
    };
    const rows = [...body.rows].sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      return (x < y ? -1 : x > y ? 1 : 0) * (falling ? -1 : 1);
    });
    body.append(...rows);
  });
}

for (const table of document.querySelectorAll("table.filterable")) {
  const rows = [...table.tBodies[0].rows];
  const field = document.createElement("input");
  const found = document.createElement("span");
  field.type = "search";
  field.placeholder = "filter rows";
  field.setAttribute("aria-label", `filter rows: ${table.parentElement.getAttribute("aria-label")}`);
  found.className = "note";
  found.setAttribute("role", "status");
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase();
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(words);
    found.textContent = words && `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
  });
  const line = document.createElement("p");
  line.className = "filter";
  line.append(field, " ", found);
  table.parentElement.before(line);
}

// Paper shows what is folded.
addEventListener("beforeprint", () => {
  for (const folded of document.querySelectorAll("details")) folded.open = true;
});

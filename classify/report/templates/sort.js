for (const button of document.querySelectorAll("table.sortable th button")) {
  button.addEventListener("click", () => {
    const header = button.parentElement;
    const body = header.closest("table").tBodies[0];
    const column = header.cellIndex;
    const falling = header.getAttribute("aria-sort") !== "descending";
    for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", falling ? "descending" : "ascending");
    const key = (row) => {
      const text = row.cells[column].textContent.trim();
      const number = Number(text.replaceAll(",", ""));
      return Number.isNaN(number) ? text : number;
    };
    const rows = [...body.rows].sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      return (x < y ? -1 : x > y ? 1 : 0) * (falling ? -1 : 1);
    });
    body.append(...rows);
  });
}

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

for (const image of document.querySelectorAll("img.matrix")) {
  const names = JSON.parse(image.dataset.names);
  const shown = image.parentElement.querySelector(".cell");
  image.addEventListener("pointermove", (event) => {
    const box = image.getBoundingClientRect();
    const place = (offset, size) => Math.min(names.length - 1, Math.max(0, Math.floor((offset / size) * names.length)));
    const row = names[place(event.clientY - box.top, box.height)];
    const column = names[place(event.clientX - box.left, box.width)];
    shown.textContent = row === column ? `${row}, predicted correctly` : `${row} predicted as ${column}`;
  });
}

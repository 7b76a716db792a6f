// Tables sort by the column whose heading is pressed: numbers by their value, everything else as text; empty cells stay last.
document.querySelectorAll("table.sortable thead button").forEach((button) => {
  button.addEventListener("click", () => {
    const heading = button.closest("th"), body = heading.closest("table").tBodies[0];
    const place = heading.cellIndex, sign = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    const value = (row) => row.cells[place].dataset.value ?? row.cells[place].textContent;
    const isEmpty = (x) => x === "" || x === "-";
    const compare = (a, b) => isEmpty(a) - isEmpty(b) || sign * (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b);
    heading.parentNode.querySelectorAll("th").forEach((th) => th.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    body.append(...Array.from(body.rows).sort((a, b) => compare(value(a), value(b))));
  });
});

"use strict";

// Sorting: a click on a heading sorts the table by that column; a second click reverses the order.
const numberOf = (text) => {
  const match = text.replaceAll("−", "-").replaceAll(",", "").match(/^[+-]?\d+(\.\d+)?(e[+-]?\d+)?/i);
  return match ? Number(match[0]) : null;
};

const sortBy = (heading) => {
  const table = heading.closest("table");
  const body = table.tBodies[0];
  const direction = heading.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  const sign = direction === "ascending" ? 1 : -1;
  const key = (row) => row.cells[heading.cellIndex].textContent.trim();
  const order = (one, other) => {
    const [a, b] = [key(one), key(other)];
    const [x, y] = [numberOf(a), numberOf(b)];
    if (x !== null && y !== null) return sign * (x - y);
    if (x !== null || y !== null) return x !== null ? -1 : 1; // cells without a number come last in either order
    return sign * a.localeCompare(b);
  };
  for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", direction);
  body.append(...[...body.rows].sort(order));
};

for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => sortBy(button.closest("th")));
}

// Light and dark: follow the system until the reader chooses.
const root = document.documentElement;
const theme = document.getElementById("theme");
const isDark = () => getComputedStyle(root).colorScheme === "dark" ||
  (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
const nameTheme = () => { theme.textContent = isDark() ? "Light page" : "Dark page"; };
theme.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  nameTheme();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
theme.hidden = false;
nameTheme();

"use strict";

// Sorting: a click on a heading orders its table by that column, a second one turns the order round.
const numberOf = (text) => {
  const found = text.replaceAll("−", "-").replaceAll(",", "").match(/^[+-]?\d+(\.\d+)?(e[+-]?\d+)?/i);
  return found ? Number(found[0]) : null;
};

const sortBy = (heading) => {
  const table = heading.closest("table");
  const body = table.tBodies[0];
  const direction = heading.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  const sign = direction === "ascending" ? 1 : -1;
  const key = (row) => {
    const cell = row.cells[heading.cellIndex];
    return cell.dataset.order ?? cell.textContent.trim();
  };
  const order = (one, other) => {
    const [a, b] = [key(one), key(other)];
    const [x, y] = [numberOf(a), numberOf(b)];
    if (x !== null && y !== null) return sign * (x - y);
    if (x !== null || y !== null) return x !== null ? -1 : 1; // what has no number comes last either way
    return sign * a.localeCompare(b);
  };
  for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", direction);
  body.append(...[...body.rows].sort(order));
};

for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => sortBy(button.closest("th")));
}

// Light and dark: the system decides until the reader does.
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

// Curves: the pointer or the arrow keys choose a place on the axis, such as an epoch, whose values are shown beside it.
const explore = (figure) => {
  const { axis, lines } = JSON.parse(figure.querySelector("script").textContent);
  const svg = figure.querySelector("svg");
  const crosshair = figure.querySelector(".crosshair");
  const tip = figure.querySelector(".tip");
  const positions = new Map(lines.flatMap((line) => line.points.map(([place, x]) => [place, x])));
  const places = [...positions.keys()].sort((a, b) => positions.get(a) - positions.get(b));
  let chosen = null;

  const describe = (line) => {
    const point = line.points.find(([place]) => place === chosen);
    if (!point) return [];
    const row = document.createElement("p");
    const sample = document.querySelector(`.legend .arm-${line.style}`).closest("svg").cloneNode(true);
    const value = document.createElement("b");
    value.textContent = point[3];
    row.append(sample, `${line.name} `, value);
    return [row];
  };

  const show = (place) => {
    chosen = place;
    const heading = document.createElement("p");
    heading.textContent = `${axis} ${place}`;
    tip.replaceChildren(heading, ...lines.flatMap(describe));
    tip.hidden = false;
    figure.classList.add("hovered");
    const x = positions.get(place);
    crosshair.setAttribute("x1", x);
    crosshair.setAttribute("x2", x);
    const [plot, frame] = [svg.getBoundingClientRect(), figure.getBoundingClientRect()];
    const at = plot.left - frame.left + (x * plot.width) / svg.viewBox.baseVal.width;
    const below = frame.bottom + tip.offsetHeight < innerHeight; // never on the lines themselves
    tip.style.left = `${Math.max(0, Math.min(at - tip.offsetWidth / 2, frame.width - tip.offsetWidth))}px`;
    tip.style.top = `${below ? frame.height - 8 : 8 - tip.offsetHeight}px`;
  };

  const hide = () => {
    chosen = null;
    tip.hidden = true;
    figure.classList.remove("hovered");
  };

  const nearest = (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    show(places.reduce((best, place) =>
      Math.abs(positions.get(place) - x) < Math.abs(positions.get(best) - x) ? place : best));
  };

  svg.addEventListener("pointermove", nearest);
  svg.addEventListener("pointerdown", nearest);
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const at = places.indexOf(chosen);
    const next = { ArrowRight: Math.min(at + 1, places.length - 1), ArrowLeft: Math.max(at - 1, 0), Home: 0, End: places.length - 1 };
    if (event.key === "Escape") hide();
    if (!(event.key in next)) return;
    event.preventDefault();
    show(places[next[event.key]]);
  });
};

for (const figure of document.querySelectorAll("figure.curve")) explore(figure);

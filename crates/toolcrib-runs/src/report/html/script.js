"use strict";
// Sorts and filters the table of tasks, and goes through it by keys. Everything is readable without this.
(() => {
  const table = document.getElementById("tasks");
  if (!table) return;
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells], all = [...body.rows];
  const value = (row, column) => {
    const cell = row.cells[column];
    const number = Number(cell.dataset.n ?? cell.textContent.replace("k", "e3").replace("M", "e6"));
    return Number.isNaN(number) ? cell.textContent : number;
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      all.sort((a, b) => {
        const [x, y] = [value(a, column), value(b, column)];
        const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
        return down ? -order : order;
      });
      body.append(...all);
    });
  });
  const filter = document.getElementById("filter");
  const words = document.createElement("input"), status = document.createElement("select");
  words.type = "search";
  words.placeholder = "filter: name, answer, error";
  words.setAttribute("aria-label", words.placeholder);
  status.setAttribute("aria-label", "status");
  for (const name of ["", ...new Set(all.map((row) => row.dataset.status))]) status.append(new Option(name || "all", name));
  const shown = document.createElement("span");
  shown.className = "soft";
  filter.append(words, status, shown);
  const apply = () => {
    const wanted = words.value.toLowerCase();
    let count = 0;
    for (const row of all) {
      const fits = (!status.value || row.dataset.status === status.value) && row.textContent.toLowerCase().includes(wanted);
      row.hidden = !fits;
      count += fits;
    }
    shown.textContent = `${count} of ${all.length}; keys: j, k, Enter`;
  };
  words.addEventListener("input", apply);
  status.addEventListener("change", apply);
  apply();
  let here = null;
  addEventListener("keydown", (event) => {
    if (event.target.closest("input, select, button, a, summary") || event.ctrlKey || event.metaKey || event.altKey) return;
    const rows = all.filter((row) => !row.hidden);
    const step = { j: 1, k: -1 }[event.key];
    if (step && rows.length) {
      const next = Math.min(Math.max(rows.indexOf(here) + step, 0), rows.length - 1);
      here?.classList.remove("here");
      here = rows[next];
      here.classList.add("here");
      here.scrollIntoView({ block: "nearest" });
    } else if (event.key === "Enter" && here) {
      here.querySelector("a")?.click();
    }
  });
  const reveal = () => {
    let id;
    try { id = decodeURIComponent(location.hash.slice(1)); } catch { return; }
    const target = document.getElementById(id), section = target?.closest("details");
    if (section) {
      section.open = true;
      section.scrollIntoView();
    }
  };
  addEventListener("hashchange", reveal);
  reveal();
})();

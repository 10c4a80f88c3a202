// Tables that can be sorted, filtered and copied. Nothing is added to a table of few rows.

const MIN_ROWS_TO_FILTER = 8;

interface Group {
  rows: HTMLTableRowElement[];
}

/** Returns the rows with the notes that belong to them. */
function groups(body: HTMLTableSectionElement): Group[] {
  const found: Group[] = [];
  for (const row of body.rows) {
    const last = found[found.length - 1];
    if (row.classList.contains("note") && last) last.rows.push(row);
    else found.push({ rows: [row] });
  }
  return found;
}

function valueOf(group: Group, column: number): number | string {
  const cell = group.rows[0]!.cells[column];
  const number = cell?.dataset.n;
  return number !== undefined ? Number(number) : (cell?.textContent ?? "").trim().toLowerCase();
}

function compare(a: number | string, b: number | string): number {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a === typeof b) return String(a).localeCompare(String(b));
  return typeof a === "number" ? -1 : 1;
}

export function makeHandy(table: HTMLTableElement): void {
  const body = table.tBodies[0];
  const head = table.tHead?.rows[0];
  if (!body || !head || body.rows.length < 2) return;
  const original = groups(body);
  const open = original.filter((group) => !group.rows[0]!.classList.contains("rest")).length;
  let sorted = -1;
  let downward = false;
  [...head.cells].forEach((cell, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...cell.childNodes);
    cell.append(button);
    button.addEventListener("click", () => {
      const isNumber = original.some((group) => typeof valueOf(group, column) === "number");
      if (sorted !== column) [sorted, downward] = [column, isNumber];
      else if (downward === isNumber) downward = !downward;
      else sorted = -1;
      for (const other of head.cells) other.removeAttribute("aria-sort");
      if (sorted >= 0) cell.setAttribute("aria-sort", downward ? "descending" : "ascending");
      const order = sorted < 0 ? original : [...original].sort((a, b) => {
        const found = compare(valueOf(a, column), valueOf(b, column));
        return downward ? -found : found;
      });
      body.append(...order.flatMap((group) => group.rows));
      // The first rows of the new order are the ones that a folded table shows.
      order.forEach((group, place) => group.rows.forEach((row) => row.classList.toggle("rest", place >= open)));
    });
  });
  if (original.length >= MIN_ROWS_TO_FILTER) addTools(table, original);
}

function addTools(table: HTMLTableElement, all: Group[]): void {
  const tools = document.createElement("div");
  tools.className = "tools";
  const filter = document.createElement("input");
  filter.type = "search";
  filter.placeholder = "filter rows";
  filter.setAttribute("aria-label", "filter rows");
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    table.classList.toggle("filtered", words.length > 0);
    for (const group of all) {
      const text = group.rows.map((row) => row.textContent).join(" ").toLowerCase();
      const isShown = words.every((word) => text.includes(word));
      for (const row of group.rows) row.hidden = !isShown;
    }
  });
  const copy = document.createElement("button");
  copy.type = "button";
  copy.textContent = "copy";
  copy.title = "Copy the rows that are shown, for a spreadsheet";
  copy.addEventListener("click", async () => {
    const rows = [...table.rows].filter((row) => row.offsetParent !== null && !row.classList.contains("note"));
    const text = rows.map((row) => [...row.cells].map((cell) => (cell.textContent ?? "").trim()).join("\t")).join("\n");
    copy.textContent = (await copied(text)) ? "copied" : "not allowed here";
    setTimeout(() => (copy.textContent = "copy"), 1500);
  });
  tools.append(filter, copy);
  (table.closest(".scroll") ?? table).before(tools);
}

/** Copies text; a page opened from disk may have to take the older way. */
export async function copied(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

/** Shows the row of a table below a figure that has all of these texts, and marks it for a moment. */
export function showRow(figure: HTMLElement, texts: string[]): void {
  const wanted = texts.filter(Boolean);
  const textOf = (cell: HTMLTableCellElement) => cell.querySelector("[title]")?.getAttribute("title") ?? cell.textContent ?? "";
  for (const table of document.querySelectorAll<HTMLTableElement>("table")) {
    const isBelow = figure.compareDocumentPosition(table) & Node.DOCUMENT_POSITION_FOLLOWING;
    const row = isBelow && [...(table.tBodies[0]?.rows ?? [])].find((one) => {
      const cells = [...one.cells].map((cell) => textOf(cell).trim());
      return wanted.every((text) => cells.includes(text));
    });
    if (!row) continue;
    row.hidden = false;
    for (let up: Element | null = row; up; up = up.parentElement) {
      if (up instanceof HTMLDetailsElement) up.open = true;
      const all = up.classList.contains("folds") ? up.querySelector<HTMLInputElement>(".all input") : null;
      if (all && row.classList.contains("rest")) all.checked = true;
    }
    row.scrollIntoView({ block: "center" });
    row.classList.add("shown");
    setTimeout(() => row.classList.remove("shown"), 2500);
    return;
  }
}

// Programs or calls as a table: sorted by any column, a page at a time.
const table = (() => {
  const place = document.getElementById("table");
  const pager = document.getElementById("pager");
  const perPage = 25;
  const status = (row) => element("span", { class: `status-${row.status}` }, row.status);
  const columns = {
    programs: [
      ["Program", (p) => p.id, "text"], ["Status", (p) => p.status, "text", status],
      ["Calls", (p) => p.count], ["Begin", (p) => p.start, "s"], ["Response", (p) => p.response, "s"],
      ["Wait", (p) => p.wait, "s"], ["Service", (p) => p.service, "s"], ["Tools", (p) => p.tool, "s"],
      ["Critical path", (p) => p.path, "s"],
      ["Its share", (p) => (p.response ? p.path / p.response : 0), "%"],
      ["Tokens", (p) => p.tokens], ["Per token", (p) => (p.tokens ? p.response / p.tokens : 0), "s"],
    ],
    calls: [
      ["Call", handleOf, "text"], ["What", titleOf, "text"], ["Status", (c) => c.status, "text", status],
      ["Begin", (c) => c.start, "s"], ["Took", (c) => c.end - c.start, "s"], ["Wait", (c) => c.wait, "s"],
      ["Service", (c) => c.service, "s"], ["Replica", (c) => (c.replica === null ? "" : c.replica)],
      ["Prompt", (c) => c.prompt], ["Cached", (c) => c.cached], ["Output", (c) => c.output],
      ["Preempted", (c) => c.preemptions],
    ],
  };
  const formats = { s: seconds, "%": percent, text: (value) => value, undefined: (value) => (value === "" ? "" : count(value)) };
  let kind = "programs", sorted = [4, -1], page = 0;

  function rows() {
    const all = kind === "programs" ? programs : calls;
    const kept = selection.matches
      ? all.filter((row) => (kind === "calls" ? selection.matches.has(row.index) : row.calls.some((call) => selection.matches.has(call.index)) || row.found))
      : all;
    const [column, direction] = sorted, value = columns[kind][column][1];
    return [...kept].sort((a, b) => {
      const left = value(a), right = value(b);
      return direction * (typeof left === "string" || typeof right === "string" ? String(left).localeCompare(String(right)) : left - right) || a.index - b.index;
    });
  }

  function draw() {
    const all = rows(), pages = Math.max(1, Math.ceil(all.length / perPage));
    page = clamp(page, 0, pages - 1);
    const head = element("tr", {}, ...columns[kind].map(([title, , format], column) => element("th", {
      scope: "col", class: format === "text" ? "text" : null,
      "aria-sort": sorted[0] === column ? (sorted[1] > 0 ? "ascending" : "descending") : null,
    }, element("button", { onclick: () => { sorted = [column, sorted[0] === column ? -sorted[1] : format === "text" ? 1 : -1]; page = 0; draw(); } },
      title + (sorted[0] === column ? (sorted[1] > 0 ? " ↑" : " ↓") : "")))));
    const body = all.slice(page * perPage, (page + 1) * perPage).map((row) => {
      const chosen = row === selection.call || (kind === "programs" && row === selection.program);
      const choose = () => select(kind === "programs" ? { program: row, call: null } : { call: row });
      return element("tr", { "aria-selected": chosen ? "true" : null }, ...columns[kind].map(([, value, format, special], column) => element("td",
        { class: format === "text" ? "text" : null },
        column === 0 ? element("button", { class: "link", onclick: choose }, value(row)) : special ? special(row) : String(formats[format](value(row))))));
    });
    place.replaceChildren(element("thead", {}, head), element("tbody", {}, ...body));
    const turn = (step, name, words) => element("button", {
      class: "icon", "aria-label": words, disabled: page + step < 0 || page + step >= pages,
      onclick: () => { page += step; draw(); },
    }, name);
    pager.replaceChildren(`${count(all.length)} ${kind}`, ...(pages > 1
      ? [turn(-1, "‹", "Previous page"), `${page + 1} of ${pages}`, turn(1, "›", "Next page")] : []));
  }

  watchers.push(draw);
  return {
    start() {
      draw();
      radios("table", (choice) => { kind = choice; sorted = [choice === "programs" ? 4 : 5, -1]; page = 0; draw(); });
    },
  };
})();

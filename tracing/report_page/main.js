// Puts the page together: figures, search, theme, and the first selection.
(() => {
  const query = document.getElementById("query");
  const list = document.getElementById("matches");
  const mostListed = 30;
  let active = -1;

  function facts() {
    const parts = [`${run.engine} ${run.model}`, `policy ${run.policy}`,
      `${run.replicas} replica${run.replicas === 1 ? "" : "s"}${run.seats ? ` of ${run.seats} seats` : ""}`];
    if (run.startedAt !== null) parts.push(new Date(run.startedAt * 1000).toISOString().slice(0, 16).replace("T", " ") + " UTC");
    document.getElementById("facts").textContent = parts.join(" · ");
    const losses = document.getElementById("losses");
    losses.hidden = !run.losses.length;
    losses.textContent = run.losses.map((loss) => `${loss[0].toUpperCase()}${loss.slice(1)}.`).join(" ");
  }

  function tiles() {
    const responses = programs.map((program) => program.response).sort((a, b) => a - b);
    const llm = calls.filter((call) => !call.tool);
    const wait = sum(programs.map((program) => program.wait)), service = sum(programs.map((program) => program.service));
    const tokens = sum(programs.map((program) => program.tokens)), prompt = sum(llm.map((call) => call.prompt));
    const failed = programs.filter((program) => program.status === "failed" || program.status === "cancelled").length;
    const begin = Math.min(...programs.map((program) => program.start)), last = Math.max(...programs.map((program) => program.end));
    const rows = [
      [count(programs.length), failed ? `programs, ${failed} failed` : programs.length === 1 ? "program" : "programs"],
      [count(llm.length), `LLM calls, ${count(calls.length - llm.length)} tools`],
      [programs.length ? seconds(last - begin) : "–", "makespan"],
      [responses.length ? seconds(sum(responses) / responses.length) : "–", "mean response"],
      [responses.length ? seconds(quantile(responses, 0.95)) : "–", "P95 response"],
      [wait + service ? percent(wait / (wait + service)) : "–", "of engine time waiting"],
      [count(sum(llm.map((call) => call.preemptions))), "preemptions"],
      [count(tokens), prompt ? `tokens, ${percent(sum(llm.map((call) => call.cached)) / prompt)} of prompts cached` : "tokens"],
    ];
    document.getElementById("tiles").replaceChildren(...rows.map(([value, name]) =>
      element("div", { class: "tile" }, element("b", {}, value), element("span", {}, name))));
  }

  // Search.

  const haystacks = calls.map((call) => `${handleOf(call)} ${titleOf(call)} ${call.name} ${call.id} ${call.status} ${call.error || ""}`.toLowerCase());

  function search() {
    const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
    active = -1;
    if (!words.length) { close(); select({ matches: null }); return; }
    const all = (text) => words.every((word) => text.includes(word));
    const foundPrograms = programs.filter((program) => (program.found = all(`${program.id} ${program.name} ${program.status} ${program.error || ""}`.toLowerCase())));
    const found = calls.filter((call) => call.program.found || all(haystacks[call.index]));
    const options = [
      ...foundPrograms.slice(0, 10).map((program) => [program.id, `program, ${program.status}, ${program.count} calls`, () => select({ program, call: null })]),
      ...found.slice(0, mostListed).map((call) => [`${titleOf(call)} ${handleOf(call)}`, `waited ${seconds(call.wait)}`, () => select({ call })]),
    ];
    list.replaceChildren(...options.map(([name, more, choose], number) => element("li", {
      role: "option", id: `match-${number}`, "aria-selected": "false",
      onpointerdown: (event) => { event.preventDefault(); choose(); close(); },
    }, name, " ", element("small", {}, more))));
    if (!options.length) list.append(element("li", { role: "option", "aria-disabled": "true" }, "Nothing found"));
    list.hidden = false;
    query.setAttribute("aria-expanded", "true");
    select({ matches: new Set(found.map((call) => call.index)) });
  }

  function close() {
    list.hidden = true;
    query.setAttribute("aria-expanded", "false");
    query.removeAttribute("aria-activedescendant");
  }

  function walk(step) {
    const options = [...list.querySelectorAll("[role=option]:not([aria-disabled])")];
    if (!options.length) return;
    active = clamp(active + step, 0, options.length - 1);
    options.forEach((option, number) => option.setAttribute("aria-selected", String(number === active)));
    options[active].scrollIntoView({ block: "nearest" });
    query.setAttribute("aria-activedescendant", options[active].id);
  }

  query.addEventListener("input", search);
  query.addEventListener("focus", () => { if (query.value) search(); });
  query.addEventListener("blur", close);
  query.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") { event.preventDefault(); walk(event.key === "ArrowDown" ? 1 : -1); }
    else if (event.key === "Enter") {
      event.preventDefault();
      if (active < 0) walk(1);
      const option = list.querySelectorAll("[role=option]:not([aria-disabled])")[active];
      if (option) option.dispatchEvent(new Event("pointerdown", { cancelable: true }));
    } else if (event.key === "Escape") { query.value = ""; search(); query.blur(); }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) { event.preventDefault(); query.focus(); }
  });

  // Light and dark.

  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement, now = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    gantt.recolour();
  });
  dark.addEventListener("change", () => gantt.recolour());

  facts();
  tiles();
  dag.start();
  gantt.start();
  charts.start();
  table.start();
  const longest = programs.reduce((best, program) => (!best || program.response > best.response ? program : best), null);
  const waited = longest && longest.calls.length ? longest.calls.reduce((best, call) => (call.wait > best.wait ? call : best)) : null;
  select(waited ? { call: waited, origin: "start" } : { program: longest, call: null });
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
})();

// The trace, unfolded; report_data.py writes what is read here. Times are seconds.
const raw = JSON.parse(document.getElementById("trace").textContent);
const run = raw.run;
const programs = raw.programs;
const causeNames = raw.causes.map(([key]) => key);
const causeTitles = raw.causes.map(([, title]) => title);
const edgeKinds = { o: "order", t: "trigger", b: "barrier" };

const textOf = (number) => (number < 0 ? null : raw.texts[number]);

function inGroups(flat, size, make) {
  const groups = [];
  for (let at = 0; at < flat.length; at += size) groups.push(make(flat.slice(at, at + size)));
  return groups;
}

const calls = raw.calls.map((fields, index) => {
  const [id, number, tool, name, node, start, end, service, wait, replica, status, counts,
    phases, parents, events, causes, seats, error, first] = fields;
  return {
    index, id, number, tool: tool === 1, name: textOf(name), node: textOf(node), start,
    end: end === null ? run.end : end, open: end === null, service, wait, replica, status,
    prompt: counts[0], cached: counts[1], output: counts[2], preemptions: counts[3],
    phases: inGroups(phases, 4, ([kind, from, to, level]) =>
      ({ kind: raw.phaseKinds[kind], start: from, end: to, level })),
    parents: inGroups(parents, 2, ([parent, kind]) => ({ parent, kind: edgeKinds[kind] })),
    events: inGroups(events, 4, ([at, kind, level, reason]) =>
      ({ at, kind: textOf(kind), level, reason: textOf(reason) })),
    causes, seats: inGroups(seats, 3, ([lane, from, to]) => ({ lane, start: from, end: to })),
    error: textOf(error), first, children: [], critical: false, program: null,
  };
});

programs.forEach((program, index) => {
  program.index = index;
  program.calls = calls.slice(program.first, program.first + program.count);
  program.tokens = 0;
  for (const call of program.calls) {
    call.program = program;
    program.tokens += call.output;
  }
  for (const number of program.critical) calls[number].critical = true;
});
for (const call of calls) {
  for (const edge of call.parents) calls[edge.parent].children.push(call.index);
}
const callById = new Map(calls.map((call) => [call.id, call]));

const titleOf = (call) => (call.tool ? call.name : call.node || call.name);
const handleOf = (call) => `${call.program.id}/${call.number}`;
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
const sum = (values) => values.reduce((total, value) => total + value, 0);

function quantile(sorted, share) {
  const place = share * (sorted.length - 1), low = Math.floor(place);
  return sorted[low] + ((sorted[low + 1] ?? sorted[low]) - sorted[low]) * (place - low);
}

// How things are written.

function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0 s";
  if (value < 0.0995) return `${(value * 1000).toPrecision(2) / 1} ms`;
  if (value < 9.995) return `${value.toFixed(2)} s`;
  if (value < 99.95) return `${value.toFixed(1)} s`;
  if (value < 600) return `${value.toFixed(0)} s`;
  const hours = Math.floor(value / 3600), minutes = Math.floor((value % 3600) / 60);
  const rest = String(Math.floor(value % 60)).padStart(2, "0");
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${rest} h` : `${minutes}:${rest} min`;
}
const count = (value) => value.toLocaleString("en");
const percent = (share) => (share > 0 && share < 0.005 ? "< 1 %" : `${Math.round(share * 100)} %`);

// Elements are made, never parsed: no text of a trace can become markup.

function element(tag, attributes = {}, ...children) {
  const made = tag === "svg" || element.svg.has(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}
element.svg = new Set(["g", "rect", "path", "text", "line", "circle"]);

// What is selected, and who wants to know.

const selection = { call: null, program: null, matches: null };
const watchers = [];

function select(change) {
  Object.assign(selection, change);
  if (change.call) selection.program = change.call.program;
  for (const watcher of watchers) watcher(change);
}

function radios(attribute, choose) {
  const buttons = [...document.querySelectorAll(`[data-${attribute}]`)];
  const pick = (button) => {
    for (const other of buttons) {
      other.setAttribute("aria-checked", String(other === button));
      other.tabIndex = other === button ? 0 : -1;
    }
    choose(button.dataset[attribute]);
  };
  buttons.forEach((button, place) => {
    button.tabIndex = place ? -1 : 0;
    button.addEventListener("click", () => pick(button));
    button.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const next = buttons[(place + step + buttons.length) % buttons.length];
      next.focus();
      pick(next);
    });
  });
}

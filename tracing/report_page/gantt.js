// The timeline: a canvas over rows of programs, or of replicas and their seats.
const gantt = (() => {
  const box = document.getElementById("gantt");
  const canvas = box.querySelector("canvas");
  const space = box.querySelector(".space");
  const tip = document.getElementById("tip");
  const pen = canvas.getContext("2d");
  const axis = 24, gap = 6, most = 460, queueHeight = 34;
  let rows = [], total = 0, colours = {}, from = 0, to = Math.max(run.end, 1e-3), mode = "programs";
  let width = 0, height = 0, gutter = 150, asked = false;

  function arrange() {
    rows = mode === "programs" ? ganttRows.ofPrograms() : ganttRows.ofReplicas();
    let top = 0;
    for (const row of rows) {
      row.top = top;
      row.queueHeight = row.queue ? queueHeight + 4 : 0;
      row.height = Math.max(18, row.queueHeight + row.lanes.length * (row.lane + 1)) + gap;
      top += row.height;
    }
    total = top;
    resize();
  }

  function resize() {
    const scale = window.devicePixelRatio || 1;
    height = Math.min(most, total + axis);
    box.style.height = `${height + 2}px`;
    space.style.height = `${total + axis}px`;
    width = box.clientWidth;
    gutter = width < 560 ? 84 : 150;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    draw();
  }

  // Drawing.

  const x = (at) => gutter + ((at - from) / (to - from)) * (width - gutter - 8);
  const timeAt = (place) => from + ((place - gutter) / (width - gutter - 8)) * (to - from);
  const hue = (program) => `hsl(${(program.index * 137.5) % 360} 46% ${colours.dark ? 62 : 60}%)`;

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const get = (name) => style.getPropertyValue(`--${name}`).trim();
    colours = {
      ink: get("ink"), soft: get("soft"), line: get("line"), card: get("card"), mark: get("mark"),
      accent: get("accent"), hover: get("hover"), dark: style.colorScheme === "dark",
      phases: {
        running: get("running"), waiting: get("waiting"), preempted: get("preempted"),
        held: get("held"), "in tool": get("tool"), "on its way": get("way"),
        unmeasured: get("unmeasured"),
      },
    };
  }

  function draw() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; paint(); });
  }

  function paint() {
    pen.clearRect(0, 0, width, height);
    pen.font = '12px system-ui, "Noto Sans", sans-serif';
    pen.textBaseline = "middle";
    const scroll = box.scrollTop;
    pen.save();
    pen.beginPath();
    pen.rect(0, axis, width, height - axis);
    pen.clip();
    for (const at of ticks()) line(x(at), axis, x(at), height, colours.line);
    rows.forEach((row, place) => {
      const top = row.top - scroll + axis;
      if (top > height || top + row.height < axis) return;
      if (place) line(0, top - gap / 2 - 0.5, width, top - gap / 2 - 0.5, colours.line);
      paintRow(row, top);
    });
    if (mode === "programs") paintEdges(scroll);
    pen.restore();
    paintAxis();
  }

  function paintRow(row, top) {
    const chosen = selection.program && row.program === selection.program;
    pen.fillStyle = chosen ? colours.accent : colours.ink;
    pen.fillText(fittedEnd(row.label, gutter - 18), 10, top + (row.height - gap) / 2);
    pen.save();
    pen.beginPath();
    pen.rect(gutter, axis, width - gutter, height - axis);
    pen.clip();
    if (row.queue) paintQueue(row, top);
    row.lanes.forEach((lane, number) => {
      const y = top + row.queueHeight + number * (row.lane + 1);
      for (const item of lane) {
        if (item.end < from) continue;
        if (item.start > to) break;
        paintItem(item, y, row.lane);
      }
    });
    pen.restore();
  }

  function paintItem(item, y, size) {
    const { call } = item;
    const faded = selection.matches && !selection.matches.has(call.index);
    pen.globalAlpha = faded ? 0.18 : 1;
    if (mode === "programs") {
      for (const phase of call.phases) {
        if (phase.end < from || phase.start > to) continue;
        pen.fillStyle = colours.phases[phase.kind];
        const left = x(phase.start);
        const slim = phase.kind === "on its way";
        pen.fillRect(left, y + (slim ? size * 0.35 : 0), Math.max(0.7, x(phase.end) - left), slim ? size * 0.3 : size);
      }
      if (call.critical && size >= 8) {
        pen.fillStyle = colours.mark;
        pen.fillRect(x(call.start), y + size - 2, Math.max(1, x(call.end) - x(call.start)), 2);
      }
    } else {
      pen.fillStyle = hue(call.program);
      pen.fillRect(x(item.start), y, Math.max(0.7, x(item.end) - x(item.start) - 0.5), size);
    }
    pen.globalAlpha = 1;
    label(item, y, size);
    if (call === selection.call) outline(item, y, size);
  }

  function label(item, y, size) {
    const room = Math.min(x(item.end), width) - Math.max(x(item.start), gutter) - 8;
    if (size < 12 || room < 28) return;
    const name = mode === "programs" ? titleOf(item.call) : handleOf(item.call);
    pen.font = '10.5px system-ui, "Noto Sans", sans-serif';
    const words = fitted(name, room);
    if (words.length > 2) {
      pen.fillStyle = "#0c1420";
      pen.fillText(words, Math.max(x(item.start), gutter) + 4, y + size / 2 + 0.5);
    }
    pen.font = '12px system-ui, "Noto Sans", sans-serif';
  }

  function outline(item, y, size) {
    pen.strokeStyle = colours.ink;
    pen.lineWidth = 2;
    pen.strokeRect(x(item.start) - 1, y - 1, Math.max(3, x(item.end) - x(item.start) + 2), size + 2);
  }

  function paintQueue(row, top) {
    const highest = Math.max(1, ...row.queue.map((point) => point.waiting));
    const y = (waiting) => top + queueHeight - (waiting / highest) * (queueHeight - 10);
    pen.beginPath();
    pen.moveTo(x(0), y(0));
    let last = 0;
    for (const point of row.queue) {
      pen.lineTo(x(point.at), y(last));
      pen.lineTo(x(point.at), y(point.waiting));
      last = point.waiting;
    }
    pen.lineTo(x(run.end), y(last));
    pen.lineTo(x(run.end), y(0));
    pen.fillStyle = colours.phases.waiting;
    pen.fill();
    pen.fillStyle = colours.soft;
    pen.font = '10.5px system-ui, "Noto Sans", sans-serif';
    pen.fillText(`waiting calls, at most ${highest}`, gutter + 4, top + 5);
    pen.font = '12px system-ui, "Noto Sans", sans-serif';
  }

  function paintEdges(scroll) {
    const call = selection.call;
    if (!call) return;
    const places = new Map();
    const row = rows.find((found) => found.program === call.program);
    row.lanes.forEach((lane, number) => lane.forEach((item) => places.set(
      item.call.index, row.top - scroll + axis + number * (row.lane + 1) + row.lane / 2)));
    pen.strokeStyle = colours.ink;
    pen.lineWidth = 1.2;
    const edge = (before, after) => {
      const left = x(before.end), right = x(after.start), bend = Math.max(8, (right - left) / 2);
      pen.beginPath();
      pen.moveTo(left, places.get(before.index));
      pen.bezierCurveTo(left + bend, places.get(before.index), right - bend, places.get(after.index),
        right, places.get(after.index));
      pen.stroke();
    };
    for (const { parent } of call.parents) edge(calls[parent], call);
    for (const child of call.children) edge(call, calls[child]);
  }

  function tickStep() {
    const rough = (to - from) / Math.max(2, (width - gutter) / 90);
    const power = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough);
  }

  function ticks() {
    const step = tickStep(), found = [];
    for (let at = Math.ceil(from / step) * step; at <= to + step / 1e6; at += step) found.push(at);
    return found;
  }

  function paintAxis() {
    pen.fillStyle = colours.card;
    pen.fillRect(0, 0, width, axis);
    line(0, axis - 0.5, width, axis - 0.5, colours.line);
    const step = tickStep(), digits = Math.max(0, -Math.floor(Math.log10(step)));
    pen.fillStyle = colours.soft;
    pen.font = '11px system-ui, "Noto Sans", sans-serif';
    pen.textAlign = "center";
    for (const at of ticks()) {
      const words = `${at.toFixed(digits)} s`, half = pen.measureText(words).width / 2;
      if (x(at) + half < width) pen.fillText(words, Math.max(x(at), gutter + half), axis / 2);
    }
    pen.textAlign = "start";
  }

  function line(x1, y1, x2, y2, colour) {
    pen.strokeStyle = colour;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(x1, y1);
    pen.lineTo(x2, y2);
    pen.stroke();
  }

  function fitted(words, room) {
    if (pen.measureText(words).width <= room) return words;
    let length = words.length;
    while (length > 1 && pen.measureText(`${words.slice(0, length)}…`).width > room) length -= 1;
    return `${words.slice(0, length)}…`;
  }

  // Ids of programs differ at their end.
  function fittedEnd(words, room) {
    let from = 0;
    while (from < words.length - 1 && pen.measureText((from ? "…" : "") + words.slice(from)).width > room) from += 1;
    return (from ? "…" : "") + words.slice(from);
  }

  // Moving about.

  function view(start, end) {
    const span = clamp(end - start, Math.min(1e-3, run.end), Math.max(run.end, 1e-3));
    from = clamp(start, 0, Math.max(0, run.end - span));
    to = from + span;
    draw();
  }

  function zoom(factor, at = (from + to) / 2) {
    view(at - (at - from) * factor, at + (to - at) * factor);
  }

  function itemAt(place, y) {
    const inside = y - axis + box.scrollTop;
    const row = rows.find((found) => inside >= found.top && inside < found.top + found.height);
    if (!row || y < axis) return null;
    const number = Math.floor((inside - row.top - row.queueHeight) / (row.lane + 1));
    const lane = row.lanes[number];
    if (!lane || place < gutter) return { row, item: null };
    const slack = (4 / (width - gutter)) * (to - from), at = timeAt(place);
    const hit = lane.find((item) => at >= item.start && at < item.end)
      || lane.find((item) => at >= item.start - slack && at <= item.end + slack);
    return { row, item: hit || null, at };
  }

  function show(call) {
    const row = rows.find((found) => found.lanes.some((lane) => lane.some((item) => item.call === call)));
    if (row && (row.top < box.scrollTop || row.top + row.height > box.scrollTop + height - axis)) {
      box.scrollTop = Math.max(0, row.top - (height - axis) / 3);
    }
    if (call.end < from || call.start > to) {
      const span = to - from, middle = (call.start + call.end) / 2;
      view(middle - span / 2, middle + span / 2);
    }
    draw();
  }

  function hover(event) {
    const frame = canvas.getBoundingClientRect();
    const found = itemAt(event.clientX - frame.left, event.clientY - frame.top);
    if (!found || !found.item) { tip.hidden = true; return; }
    const { call } = found.item;
    const phase = call.phases.find((part) => found.at >= part.start && found.at < part.end);
    const lines = [element("b", {}, `${titleOf(call)} · ${handleOf(call)}`)];
    const add = (words) => lines.push(element("br"), words);
    if (phase) add(`${phase.kind} ${seconds(phase.end - phase.start)}${phase.level ? `, level ${phase.level}` : ""}`);
    if (!call.tool) add(`waited ${seconds(call.wait)}, service ${seconds(call.service)}, ${call.output} tokens`);
    add(`${seconds(call.start)} to ${seconds(call.end)}`);
    tip.replaceChildren(...lines);
    tip.hidden = false;
    const size = tip.getBoundingClientRect();
    tip.style.left = `${clamp(event.clientX + 14, 4, window.innerWidth - size.width - 4)}px`;
    tip.style.top = `${event.clientY + 18 + size.height > window.innerHeight ? event.clientY - size.height - 12 : event.clientY + 18}px`;
  }

  const pointers = new Map();
  let moved = 0;
  box.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, event);
    moved = 0;
  });
  box.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) { hover(event); return; }
    const perPixel = (to - from) / (width - gutter - 8);
    if (pointers.size === 2) {
      const [a, b] = [...pointers.values()];
      const other = a.pointerId === event.pointerId ? b : a;
      const apart = Math.abs(before.clientX - other.clientX), now = Math.abs(event.clientX - other.clientX);
      if (apart > 10 && now > 10) zoom(apart / now, timeAt((event.clientX + other.clientX) / 2 - box.getBoundingClientRect().left));
      moved += 9;
    } else {
      const shift = event.clientX - before.clientX;
      moved += Math.abs(shift);
      if (moved > 4) {
        tip.hidden = true;
        box.classList.add("moving");
        view(from - shift * perPixel, to - shift * perPixel);
      }
    }
    pointers.set(event.pointerId, event);
  });
  const release = (event) => {
    if (pointers.delete(event.pointerId) && event.type === "pointerup" && moved <= 4) {
      const frame = canvas.getBoundingClientRect();
      const found = itemAt(event.clientX - frame.left, event.clientY - frame.top);
      if (found && found.item) select({ call: found.item.call, origin: "gantt" });
      else if (found && found.row.program) select({ program: found.row.program, call: null });
    }
    box.classList.remove("moving");
  };
  box.addEventListener("pointerup", release);
  box.addEventListener("pointercancel", release);
  box.addEventListener("pointerleave", (event) => { tip.hidden = true; release(event); });
  box.addEventListener("scroll", draw, { passive: true });
  box.addEventListener("wheel", (event) => {
    const sideways = event.shiftKey ? event.deltaY : event.deltaX;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      zoom(Math.exp(clamp(event.deltaY, -60, 60) / 200), timeAt(event.clientX - box.getBoundingClientRect().left));
    } else if (Math.abs(sideways) > Math.abs(event.deltaY) || event.shiftKey) {
      event.preventDefault();
      const shift = (sideways * (to - from)) / width;
      view(from + shift, to + shift);
    }
  }, { passive: false });

  function neighbour(sideways, down) {
    const current = selection.call;
    if (!current) return calls[0];
    if (sideways) {
      const list = [...current.program.calls].sort((a, b) => a.start - b.start || a.index - b.index);
      return list[clamp(list.indexOf(current) + sideways, 0, list.length - 1)];
    }
    const order = [...programs].filter((program) => program.count).sort((a, b) => a.start - b.start);
    const program = order[clamp(order.indexOf(current.program) + down, 0, order.length - 1)];
    const far = (call) => Math.max(call.start - current.start, current.start - call.end, 0);
    return program === current.program ? current
      : program.calls.reduce((best, call) => (far(call) < far(best) ? call : best));
  }

  box.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
    if (moves[event.key] && calls.length) select({ call: neighbour(...moves[event.key]), origin: "keys" });
    else if (event.key === "+" || event.key === "=") zoom(0.6);
    else if (event.key === "-") zoom(1 / 0.6);
    else if (event.key === "0" || event.key === "Home") view(0, run.end);
    else if (event.key === "Enter" && selection.call) document.getElementById("details-card").scrollIntoView({ block: "nearest" });
    else return;
    event.preventDefault();
  });
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => ({
      in: () => zoom(0.6), out: () => zoom(1 / 0.6), all: () => view(0, run.end),
    })[button.dataset.zoom]());
  }

  radios("rows", (choice) => { mode = choice; box.scrollTop = 0; arrange(); legend(); });

  function legend() {
    const shown = mode === "programs"
      ? raw.phaseKinds.filter((kind) => calls.some((call) => call.phases.some((phase) => phase.kind === kind)))
      : [];
    const items = shown.map((kind) => {
      const mark = element("i");
      mark.style.background = colours.phases[kind];
      return element("li", {}, mark, kind);
    });
    if (mode === "programs") {
      const mark = element("i");
      mark.style.cssText = "height:3px;background:var(--mark)";
      items.push(element("li", {}, mark, "critical path"));
    } else items.push(element("li", {}, "seats, a colour for each program"));
    document.getElementById("legend").replaceChildren(...items);
  }

  watchers.push((change) => {
    if (change.call && change.origin !== "gantt") show(change.call);
    draw();
  });

  return {
    recolour() { readColours(); legend(); draw(); },
    start() {
      readColours();
      arrange();
      legend();
      new ResizeObserver(() => { if (box.clientWidth !== width) resize(); }).observe(box);
    },
  };
})();

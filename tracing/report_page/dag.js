// The DAG of one program, layer by layer from left to right, as SVG.
const dag = (() => {
  const box = document.getElementById("dag");
  const note = document.getElementById("dag-note");
  const picker = document.getElementById("program");
  const wide = 172, high = 40, across = 216, down = 52;
  const mostLabelled = 700;
  let shown = null, view = null, whole = null, nodes = new Map(), svg = null;

  function layersOf(program) {
    const layer = new Map(), layers = [];
    for (const call of program.calls) {
      const at = Math.max(-1, ...call.parents.map((edge) => layer.get(edge.parent) ?? -1)) + 1;
      layer.set(call.index, at);
      (layers[at] ||= []).push(call);
    }
    const place = new Map();
    layers.forEach((list) => list.forEach((call, number) => place.set(call.index, number)));
    // Calls move to the middle of their neighbours, forth and back, so that edges cross less.
    const middle = (call, neighbours) => {
      const found = neighbours.map((index) => place.get(index)).filter((number) => number !== undefined);
      return found.length ? sum(found) / found.length : place.get(call.index);
    };
    const sweep = (list, neighbours) => {
      const wanted = new Map(list.map((call) => [call.index, middle(call, neighbours(call))]));
      list.sort((a, b) => wanted.get(a.index) - wanted.get(b.index) || a.index - b.index);
      list.forEach((call, number) => place.set(call.index, number));
    };
    const rounds = program.count > 2000 ? 1 : 3;
    for (let round = 0; round < rounds; round += 1) {
      layers.forEach((list) => sweep(list, (call) => call.parents.map((edge) => edge.parent)));
      [...layers].reverse().forEach((list) => sweep(list, (call) => call.children));
    }
    return layers;
  }

  function draw(program) {
    shown = program;
    picker.value = String(program.index);
    nodes = new Map();
    if (!program.count) { box.replaceChildren(); note.textContent = "The program made no calls."; return; }
    const small = program.count > mostLabelled;
    const [dx, dy] = small ? [26, 14] : [across, down];
    const layers = layersOf(program);
    const tallest = Math.max(...layers.map((list) => list.length));
    const at = new Map();
    layers.forEach((list, layer) => list.forEach((call, number) => at.set(
      call.index, [layer * dx, (number + (tallest - list.length) / 2) * dy])));
    const edges = element("g"), boxes = element("g");
    for (const call of program.calls) {
      for (const { parent, kind } of call.parents) if (at.has(parent)) edges.append(edge(parent, call, kind, at, small));
      const node = small ? dot(call, at.get(call.index)) : card(call, at.get(call.index));
      nodes.set(call.index, node);
      boxes.append(node);
    }
    svg = element("svg", { role: "img", "aria-label": `DAG of ${program.id}` }, edges, boxes);
    const size = small ? [10, 10] : [wide, high];
    whole = [-14, -14, (layers.length - 1) * dx + size[0] + 28, (tallest - 1) * dy + size[1] + 28];
    box.style.height = `${clamp(whole[3] + 40, 150, 400)}px`;
    box.replaceChildren(svg);
    note.textContent = `${count(program.count)} calls in ${count(layers.length)} layers; critical path ` +
      `${seconds(program.path)} of service` + (program.response ? `, ${percent(program.path / program.response)} of the response time.` : ".");
    fit();
    mark();
  }

  function edge(parent, call, kind, at, small) {
    const [x1, y1] = at.get(parent), [x2, y2] = at.get(call.index);
    const size = small ? [8, 4] : [wide, high / 2];
    const left = x1 + size[0], bend = Math.max(12, (x2 - left) / 2);
    const critical = calls[parent].critical && call.critical && followsOnPath(parent, call);
    return element("path", {
      class: `${kind === "barrier" ? "barrier" : ""} ${critical ? "critical" : ""}`,
      d: `M${left},${y1 + size[1]} C${left + bend},${y1 + size[1]} ${x2 - bend},${y2 + size[1]} ${x2},${y2 + size[1]}`,
    });
  }

  function followsOnPath(parent, call) {
    const path = call.program.critical, place = path.indexOf(call.index);
    return place > 0 && path[place - 1] === parent;
  }

  const classes = (call) => `node${call.critical ? " critical" : ""}${call.status === "failed" || call.status === "aborted" ? " failed" : ""}`;
  const says = (call) => `${titleOf(call)}, call ${call.number}, waited ${seconds(call.wait)}, service ${seconds(call.service)}`;

  function card(call, [x, y]) {
    const title = titleOf(call), cut = title.length > 20 ? `${title.slice(0, 19)}…` : title;
    const took = call.tool ? seconds(call.end - call.start) : `${seconds(call.service)}${call.wait >= 0.0005 ? ` · waited ${seconds(call.wait)}` : ""}`;
    const stripe = element("rect", { class: "stripe", x: 1, y: 6, width: 4, height: high - 12, rx: 2 });
    stripe.style.fill = call.tool ? "var(--tool)" : call.wait > call.service ? "var(--waiting)" : "var(--running)";
    return element("g", {
      class: classes(call), transform: `translate(${x},${y})`, role: "button", "aria-label": says(call),
      onclick: () => { if (!dragged) select({ call, origin: "dag" }); },
    },
      element("rect", { class: "box", width: wide, height: high, rx: 8 }), stripe,
      element("text", { x: 13, y: 17 }, cut),
      element("text", { class: "small", x: 13, y: 32 }, `#${call.number} · ${took}`));
  }

  function dot(call, [x, y]) {
    return element("g", {
      class: classes(call), transform: `translate(${x + 4},${y + 4})`, "aria-label": says(call),
      onclick: () => { if (!dragged) select({ call, origin: "dag" }); },
    }, element("circle", { r: 4 }));
  }

  function mark() {
    for (const [index, node] of nodes) {
      node.classList.toggle("selected", selection.call !== null && index === selection.call.index);
      node.classList.toggle("dim", selection.matches !== null && !selection.matches.has(index));
    }
  }

  // Moving about.

  function fit() {
    if (!box.clientWidth) return;
    const ratio = box.clientWidth / Math.max(1, box.clientHeight);
    let [x, y, w, h] = whole;
    // A long or a tall DAG begins at its start, in a size that can be read.
    const most = shown.count > mostLabelled ? 900 : Math.max(340, box.clientWidth * 1.3);
    if (w > most) w = most;
    if (h > most / ratio) { y += (h - most / ratio) / 2; h = most / ratio; }
    if (w / h > ratio) { y -= (w / ratio - h) / 2; h = w / ratio; } else { const extra = h * ratio - w; x -= whole[2] > most ? 0 : extra / 2; w = h * ratio; }
    view = [x, y, w, h];
    show();
  }

  function show() { if (svg) svg.setAttribute("viewBox", view.join(" ")); }

  function zoom(factor, px = 0.5, py = 0.5) {
    const [x, y, w, h] = view;
    const bounded = clamp(w * factor, 60, Math.max(whole[2], whole[3]) * 4) / w;
    view = [x + w * px * (1 - bounded), y + h * py * (1 - bounded), w * bounded, h * bounded];
    show();
  }

  function reveal(call) {
    const node = nodes.get(call.index);
    if (!node || !view || call.program !== shown) return;
    const [, x, y] = node.getAttribute("transform").match(/\(([-\d.]+),([-\d.]+)\)/).map(Number);
    const [left, top, w, h] = view;
    if (x < left || x + wide > left + w || y < top || y + high > top + h) {
      view = [x + wide / 2 - w / 2, y + high / 2 - h / 2, w, h];
      show();
    }
  }

  let held = null, dragged = false;
  box.addEventListener("pointerdown", (event) => { held = event; dragged = false; });
  box.addEventListener("pointermove", (event) => {
    if (!held || !view || !(event.buttons & 1)) return;
    const scale = view[2] / box.clientWidth;
    const shift = [event.clientX - held.clientX, event.clientY - held.clientY];
    if (dragged || Math.hypot(...shift) > 4) {
      dragged = true;
      view = [view[0] - shift[0] * scale, view[1] - shift[1] * scale, view[2], view[3]];
      held = event;
      show();
    }
  });
  for (const kind of ["pointerup", "pointerleave", "pointercancel"]) box.addEventListener(kind, () => { held = null; });
  box.addEventListener("wheel", (event) => {
    if (!view || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    const frame = box.getBoundingClientRect();
    zoom(Math.exp(clamp(event.deltaY, -60, 60) / 200), (event.clientX - frame.left) / frame.width, (event.clientY - frame.top) / frame.height);
  }, { passive: false });
  box.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !shown || !shown.count) return;
    const call = selection.call && selection.call.program === shown ? selection.call : null;
    const siblings = call && call.parents.length
      ? calls[call.parents[0].parent].children : shown.calls.filter((other) => !other.parents.length).map((other) => other.index);
    const beside = (step) => calls[siblings[clamp(siblings.indexOf(call.index) + step, 0, siblings.length - 1)]];
    const next = {
      ArrowRight: () => (call.children.length ? calls[call.children[0]] : call),
      ArrowLeft: () => (call.parents.length ? calls[call.parents[0].parent] : call),
      ArrowDown: () => beside(1), ArrowUp: () => beside(-1),
    }[event.key];
    if (next) select({ call: call ? next() : shown.calls[0], origin: "keys" });
    else if (event.key === "+" || event.key === "=") zoom(0.7);
    else if (event.key === "-") zoom(1 / 0.7);
    else if (event.key === "0" || event.key === "Home") fit();
    else return;
    event.preventDefault();
  });
  for (const button of document.querySelectorAll("[data-dag]")) {
    button.addEventListener("click", () => ({ in: () => zoom(0.7), out: () => zoom(1 / 0.7), all: fit })[button.dataset.dag]());
  }
  picker.addEventListener("change", () => select({ program: programs[Number(picker.value)], call: null }));
  watchers.push(() => {
    if (selection.program && selection.program !== shown) draw(selection.program);
    mark();
    if (selection.call) reveal(selection.call);
  });

  return {
    start() {
      picker.replaceChildren(...programs.map((program) => element("option", { value: program.index }, program.id)));
      new ResizeObserver(() => {
        if (!shown || !shown.count) return;
        fit();
        if (selection.call) reveal(selection.call);
      }).observe(box);
    },
  };
})();

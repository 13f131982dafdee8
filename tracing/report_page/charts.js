// Waiting by cause as bars, latency as a histogram.
const charts = (() => {
  const causes = document.getElementById("causes");
  const latency = document.getElementById("latency");
  const mostPrograms = 12;

  function stacked(name, values, most, choose) {
    const all = sum(values);
    const track = element("span", { class: "track", role: "img", "aria-label": values
      .map((value, place) => (value > 0 ? `${causeTitles[place]} ${seconds(value)}` : "")).filter(Boolean).join(", ") });
    values.forEach((value, place) => {
      if (value <= 0) return;
      const part = element("span", { class: `cause-${causeNames[place]}`, title: `${causeTitles[place]}: ${seconds(value)}` });
      part.style.width = `${(100 * value) / most}%`;
      track.append(part);
    });
    const label = choose ? element("button", { class: "link name", title: name, onclick: choose }, name) : element("span", { class: "name" }, name);
    return element("div", { class: "bar" }, label, track, element("span", { class: "value" }, seconds(all)));
  }

  function drawCauses() {
    const totals = causeNames.map((_, place) => sum(programs.map((program) => program.causes[place] || 0)));
    const all = sum(totals);
    if (all < 1e-4) { causes.replaceChildren(element("p", { class: "empty" }, "No call waited.")); return; }
    const order = totals.map((value, place) => [value, place]).filter(([value]) => value > 0).sort((a, b) => b[0] - a[0]);
    const legend = element("ul", { class: "legend" }, ...order.map(([value, place]) =>
      element("li", {}, element("i", { class: `cause-${causeNames[place]}` }), `${causeTitles[place]} ${percent(value / all)}`)));
    const waiters = [...programs].sort((a, b) => sum(b.causes) - sum(a.causes)).filter((program) => sum(program.causes) > 0);
    const most = sum(waiters[0].causes);
    const rest = waiters.length - mostPrograms;
    causes.replaceChildren(legend, stacked("all programs", totals, all, null),
      element("h3", {}, waiters.length > 1 ? "Programs that waited longest" : "Program"),
      ...waiters.slice(0, mostPrograms).map((program) =>
        stacked(program.id, program.causes, most, () => select({ program, call: null }))),
      rest > 0 ? element("p", { class: "hint" }, `and ${count(rest)} more`) : "");
  }

  const measures = {
    response: () => programs.filter((program) => program.response > 0).map((program) => program.response),
    token: () => programs.filter((program) => program.tokens).map((program) => program.response / program.tokens),
    call: () => calls.filter((call) => !call.tool && !call.open).map((call) => call.end - call.start),
  };
  const captions = {
    response: "response time of programs, seconds", token: "response time per generated token, seconds",
    call: "duration of LLM calls, seconds",
  };

  let measure = "response";

  function drawLatency(which) {
    measure = which;
    const values = measures[which]().sort((a, b) => a - b);
    if (!values.length) { latency.replaceChildren(element("p", { class: "empty" }, "Nothing was measured.")); return; }
    const w = Math.max(260, latency.clientWidth), h = 230, left = 34, right = 14, bottom = 40, top = 26;
    const low = 0, high = values[values.length - 1] * 1.02 || 1;
    const bins = Math.round(clamp(Math.sqrt(values.length) * 2, 8, 40));
    const heights = new Array(bins).fill(0);
    for (const value of values) heights[Math.min(bins - 1, Math.floor(((value - low) / (high - low)) * bins))] += 1;
    const tallest = Math.max(...heights);
    const x = (value) => left + ((value - low) / (high - low)) * (w - left - right);
    const y = (number) => h - bottom - (number / tallest) * (h - bottom - top);
    const svg = element("svg", { viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": `Distribution: ${captions[which]}` });
    svg.append(element("line", { x1: left, x2: w - right, y1: h - bottom, y2: h - bottom }));
    heights.forEach((number, bin) => {
      if (!number) return;
      const from = x(low + ((high - low) * bin) / bins), to = x(low + ((high - low) * (bin + 1)) / bins);
      const bar = element("rect", { x: from + 0.75, width: Math.max(1, to - from - 1.5), y: y(number), height: h - bottom - y(number), rx: 2 });
      bar.append(document.createElementNS("http://www.w3.org/2000/svg", "title"));
      bar.firstChild.textContent = `${number} of ${values.length}`;
      svg.append(bar);
    });
    const say = (value, words, attributes = {}) => svg.append(element("text", { x: value, ...attributes }, words));
    for (let tick = 0; tick <= 4; tick += 1) {
      const value = low + ((high - low) * tick) / 4;
      say(x(value), value.toPrecision(3) / 1, { y: h - bottom + 15, "text-anchor": "middle" });
    }
    say((w + left) / 2, captions[which], { y: h - 6, "text-anchor": "middle" });
    say(left - 6, tallest, { y: top + 6, "text-anchor": "end" });
    const stats = [["P50", quantile(values, 0.5)], ["mean", sum(values) / values.length], ["P95", quantile(values, 0.95)]];
    const written = element("p", { class: "hint num" }, stats.map(([name, value]) => `${name} ${seconds(value)}`).join(" · ") + ` · ${count(values.length)} values`);
    for (const [name, value] of stats.filter(([name]) => name !== "mean")) {
      svg.append(element("line", { class: "stat", x1: x(value), x2: x(value), y1: top - 4, y2: h - bottom }));
      say(x(value), name, { y: top - 10, "text-anchor": name === "P95" ? "start" : "end" });
    }
    latency.replaceChildren(svg, written);
  }

  return {
    start() {
      drawCauses();
      drawLatency("response");
      radios("latency", drawLatency);
      new ResizeObserver(() => drawLatency(measure)).observe(latency.parentElement);
    },
    stacked,
  };
})();

// The story of the selected call, or of the selected program.
const details = (() => {
  const place = document.getElementById("details");
  const mostServed = 6;
  const titles = {
    arrival: "reaches the engine", admission: "is let in", dispatch: "gets a seat",
    resume: "gets a seat again", demotion: "goes down a level", promotion: "is promoted",
    preemption: "loses its seat", swap: "is swapped", leave: "leaves the engine",
  };
  const standings = {
    own: "of the same program", better: "better placed", same: "same level", worse: "worse placed, kept its seat",
  };

  const facts = (pairs) => element("dl", {}, ...pairs.filter(([, value]) => value !== null)
    .flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
  const link = (call, words) => element("button", { class: "link", onclick: () => select({ call }) }, words || `${handleOf(call)} ${titleOf(call)}`);

  // Reasons name calls by their ids; people know them by program and number.
  function readable(reason) {
    return (reason || "").split(/([^\s:,;]+)/).map((word) => {
      const call = word.length > 3 && callById.get(word);
      return call ? link(call, handleOf(call)) : word;
    });
  }

  function phases(call) {
    const strip = element("div", { class: "phases", role: "img", "aria-label": call.phases.map((phase) => `${phase.kind} ${seconds(phase.end - phase.start)}`).join(", ") });
    const names = { "in tool": "tool", "on its way": "way" };
    for (const phase of call.phases) {
      const part = element("span", { title: `${phase.kind} ${seconds(phase.end - phase.start)}` });
      part.style.cssText = `flex:${Math.max(phase.end - phase.start, 1e-9)};background:var(--${names[phase.kind] || phase.kind})`;
      strip.append(part);
    }
    return strip;
  }

  // As waiting.py has it: who held seats of the replica while the call waited, longest first.
  function served(call) {
    const waits = call.phases.filter((phase) => ["held", "waiting", "preempted"].includes(phase.kind));
    const found = [];
    for (const other of calls) {
      if (other.replica !== call.replica || other.tool || other === call) continue;
      let lasted = 0, standing = null;
      for (const wait of waits) {
        if (other.end <= wait.start || other.start >= wait.end) continue;
        for (const phase of other.phases) {
          if (phase.kind !== "running") continue;
          const overlap = Math.min(wait.end, phase.end) - Math.max(wait.start, phase.start);
          if (overlap <= 0) continue;
          lasted += overlap;
          standing ||= other.program === call.program ? "own" : phase.level === wait.level ? "same" : phase.level < wait.level ? "better" : "worse";
        }
      }
      if (lasted > 0) found.push({ other, lasted, standing });
    }
    return found.sort((a, b) => b.lasted - a.lasted).slice(0, mostServed);
  }

  function story(call) {
    const lines = [[call.start, ["begins"]]];
    if (call.parents.length) {
      const last = call.parents.map((edge) => [calls[edge.parent], edge.kind]).reduce((a, b) => (b[0].end > a[0].end ? b : a));
      lines[0][1] = ["begins after ", link(last[0]), ` (${last[1]})`];
    }
    for (const event of call.events) {
      const level = event.kind === "leave" ? "" : `, level ${event.level}`;
      lines.push([event.at, [`${titles[event.kind] || event.kind}${level}`, event.reason ? ": " : "", ...readable(event.reason)]]);
    }
    if (call.first !== null) lines.push([call.first, ["first token"]]);
    lines.push([call.end, [call.open ? "still runs where the trace ends" : `ends, ${call.status}`]]);
    lines.sort((a, b) => a[0] - b[0]);
    return element("ol", { class: "story", tabindex: "0", "aria-label": "What happened" },
      ...lines.map(([at, words]) => element("li", {}, element("time", {}, `${at.toFixed(3)} s`), element("span", {}, ...words))));
  }

  function ofCall(call) {
    const waited = sum(call.causes), instead = waited > 1e-3 ? served(call) : [];
    return [
      element("p", {}, element("b", {}, titleOf(call)), ` · ${handleOf(call)}`),
      phases(call),
      facts([
        ["Took", seconds(call.end - call.start)],
        ["Service", call.tool ? null : seconds(call.service)],
        ["Waited", call.tool ? null : `${seconds(call.wait)}${call.end > call.start ? `, ${percent(call.wait / (call.end - call.start))} of its time` : ""}`],
        ["Replica", call.replica === null ? null : String(call.replica)],
        ["Tokens", call.tool ? null : `${count(call.prompt)} prompt (${count(call.cached)} cached), ${count(call.output)} output`],
        ["Critical path", call.critical ? "yes" : "no"],
        ["Error", call.error], ["Id", call.id],
      ]),
      waited > 1e-4 ? element("h3", {}, "What it waited for") : null,
      ...(waited > 1e-4 ? call.causes.map((value, cause) => [value, cause]).filter(([value]) => value >= 5e-4).sort((a, b) => b[0] - a[0])
        .map(([value, cause]) => charts.stacked(causeTitles[cause], causeNames.map((_, at) => (at === cause ? value : 0)), waited, null)) : []),
      instead.length ? element("h3", {}, "Served meanwhile") : null,
      instead.length ? element("ol", {}, ...instead.map(({ other, lasted, standing }) =>
        element("li", {}, element("time", {}, seconds(lasted)), element("span", {}, link(other), ` (${standings[standing]})`)))) : null,
      element("h3", {}, "What happened"), story(call),
    ];
  }

  function ofProgram(program) {
    const slowest = [...program.calls].sort((a, b) => b.wait - a.wait).slice(0, 6).filter((call) => call.wait > 1e-3);
    return [
      element("p", {}, element("b", {}, program.id), ` · `, element("span", { class: `status-${program.status}` }, program.status)),
      facts([
        ["Response", seconds(program.response)], ["Service", seconds(program.service)], ["Waited", seconds(program.wait)],
        ["In tools", seconds(program.tool)],
        ["Critical path", `${seconds(program.path)}${program.response ? `, ${percent(program.path / program.response)} of the response time` : ""}`],
        ["Calls", count(program.count)], ["Tokens", count(program.tokens)], ["Error", program.error],
      ]),
      slowest.length ? element("h3", {}, "Calls that waited longest") : null,
      slowest.length ? element("ol", {}, ...slowest.map((call) => element("li", {}, element("time", {}, seconds(call.wait)), element("span", {}, link(call))))) : null,
      element("p", { class: "hint" }, "Choose a call in the timeline or the DAG to read its story."),
    ];
  }

  watchers.push(() => {
    const shown = selection.call ? ofCall(selection.call) : selection.program ? ofProgram(selection.program) : [element("p", { class: "empty" }, "No program was recorded.")];
    place.replaceChildren(...shown.filter((part) => part !== null));
  });
  return {};
})();

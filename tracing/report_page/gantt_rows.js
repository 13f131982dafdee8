// What stands in the rows of the timeline: programs with their calls, or replicas with their seats.
const ganttRows = (() => {
  function lanesOf(list) {
    const lanes = [], ends = [];
    for (const call of [...list].sort((a, b) => a.start - b.start)) {
      let lane = ends.findIndex((end) => end <= call.start);
      if (lane < 0) lane = ends.push(0) - 1;
      ends[lane] = call.end;
      (lanes[lane] ||= []).push({ call, start: call.start, end: call.end });
    }
    return lanes;
  }

  const laneHeight = (lanes) => (lanes <= 3 ? 14 : lanes <= 8 ? 10 : Math.max(2, Math.min(8, 160 / lanes)));

  function ofPrograms() {
    return [...programs].sort((a, b) => a.start - b.start).map((program) => {
      const lanes = lanesOf(program.calls);
      return { label: program.id, program, lanes, lane: laneHeight(lanes.length), queue: null };
    });
  }

  function ofReplicas() {
    return Array.from({ length: run.replicas }, (_, replica) => {
      const lanes = Array.from({ length: run.seats && run.seats <= 32 ? run.seats : 1 }, () => []);
      const changes = [];
      for (const call of calls) {
        if (call.replica !== replica) continue;
        for (const seat of call.seats) {
          (lanes[seat.lane] ||= []).push({ call, start: seat.start, end: seat.end });
        }
        for (const phase of call.phases) {
          if (phase.kind === "waiting" || phase.kind === "preempted") {
            changes.push([phase.start, 1], [phase.end, -1]);
          }
        }
      }
      for (const lane of lanes) lane.sort((a, b) => a.start - b.start);
      changes.sort((a, b) => a[0] - b[0]);
      let waiting = 0;
      const queue = changes.map(([at, change]) => ({ at, waiting: (waiting += change) }));
      return { label: `replica ${replica}`, replica, lanes, lane: laneHeight(lanes.length), queue };
    });
  }

  return { ofPrograms, ofReplicas };
})();

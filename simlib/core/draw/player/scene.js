// What is true of a scene at a moment, and the words for it. No drawing, no page.

const STATES = ["computing", "in a call", "async op in flight", "waiting", "transferring"];

const clamp = (x, low, high) => Math.min(Math.max(x, low), high);

/** When an event was over; an open one lasts as long as its rank. */
const endOf = (scene, event) => event.end ?? scene.lanes[event.row].until;

/** The index of the last part that begins at or before t, in a list sorted by start; or -1. */
function lastBefore(parts, t) {
  let low = 0, high = parts.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (parts[middle][0] <= t) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** Sort what is looked up by time, once. */
function prepare(scene) {
  for (const lane of scene.lanes) {
    for (const name of STATES) lane.states[name].sort((a, b) => a[0] - b[0]);
    lane.events = [];
  }
  scene.events.forEach((event, index) => scene.lanes[event.row].events.push(index));
  scene.moments = [...new Set(scene.events.map((event) => event.post))];
  return scene;
}

/** What a lane's rank does at t: one of STATES, "before", "returned", "never finished", "no record". */
function stateAt(lane, t) {
  if (lane.record === "none") return "no record";
  const span = lane.states.computing[0];
  if (!span || t < span[0]) return "before";
  for (const name of ["waiting", "transferring", "in a call"]) {
    const parts = lane.states[name];
    const part = parts[lastBefore(parts, t)];
    if (part && t < part[1]) return name;
  }
  if (t < lane.until) return "computing";
  if (!lane.open) return lane.record === "part" ? "no record" : "returned";
  const waits = lane.states.waiting;
  return waits.length && waits[waits.length - 1][1] >= lane.until ? "waiting" : "never finished";
}

/** The event that a rank is blocked in at t, or undefined. */
function blockingEvent(scene, row, t) {
  const lane = scene.lanes[row];
  for (const index of lane.events) {
    const event = scene.events[index];
    const start = event.async ? event.wait : event.post;
    const end = endOf(scene, event);
    const open = event.end === null && t >= end;
    if (start !== null && start <= t && (t < end || open)) return event;
  }
}

/** The label of the piece that a rank computes at t, the innermost one; or undefined. */
function pieceAt(lane, t) {
  for (let i = lastBefore(lane.pieces, t); i >= 0; i--) {
    if (t < lane.pieces[i][1]) return lane.pieces[i][3];
  }
}

/** What one rank does at t, in words. */
function doingAt(scene, row, t) {
  const state = stateAt(scene.lanes[row], t);
  const words = {
    before: "has not begun", returned: "has returned", computing: "computes",
    "never finished": "never returned",
    "no record": scene.lanes[row].record === "none" ? "left no record" : "left no further record",
  };
  const piece = state === "computing" && pieceAt(scene.lanes[row], t);
  if (piece) return `computes ${piece}`;
  if (words[state]) return words[state];
  const call = blockingEvent(scene, row, t)?.call ?? "a call";
  if (state === "transferring") return `transfers in ${call}`;
  return state === "waiting" ? `waits in ${call}` : `is in ${call}`;
}

/** "0", "1 and 3", "0 to 7": ranks in words. */
function rankNames(ranks) {
  const runs = [];
  for (const rank of [...ranks].sort((a, b) => a - b)) {
    const last = runs[runs.length - 1];
    if (last && rank === last[1] + 1) last[1] = rank;
    else runs.push([rank, rank]);
  }
  const words = runs.flatMap(([a, b]) => (b > a + 1 ? [`${a} to ${b}`] : b > a ? [a, b] : [a]));
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}

/** What all ranks do at t, those that do the same together, and what is under way. */
function tellMoment(scene, t) {
  const groups = new Map();
  scene.lanes.forEach((lane, row) => {
    const doing = doingAt(scene, row, t);
    groups.set(doing, [...(groups.get(doing) ?? []), lane.rank]);
  });
  const told = [...groups].map(([doing, ranks]) => {
    const plural = ranks.length > 1;
    const verb = plural
      ? doing.replace(/^has /, "have ").replace(/^is /, "are ").replace(/^(wait|compute|transfer)s/, "$1")
      : doing;
    return `${plural ? "ranks" : "rank"} ${rankNames(ranks)} ${verb}`;
  });
  const flying = scene.arrows.filter((arrow) => inFlight(arrow, t)).length;
  if (flying) told.push(`${flying} message${flying > 1 ? "s" : ""} in flight`);
  const most = 6;
  return told.length > most ? [...told.slice(0, most), "..."] : told;
}

const inFlight = (arrow, t) => arrow.start <= t && (arrow.end === null || t < arrow.end);

/** A time with as many digits as tell moments of a span apart. */
function timeText(scene, t, span = scene.end - scene.begin) {
  const digits = clamp(3 - Math.ceil(Math.log10(Math.max(span * scene.scale, 1e-12))), 0, 9);
  return `${(t * scene.scale).toFixed(digits)} ${scene.unit}`;
}

/** A moment and the last one: the text beside the slider. */
const momentText = (scene, t) => `${timeText(scene, t)} / ${timeText(scene, scene.end)}`;

/** What there is to know of an event: lines for the eye, one sentence for a screen reader. */
function tellEvent(scene, event) {
  const end = endOf(scene, event);
  const span = Math.max((end - event.post) * 20, (scene.end - scene.begin) / 50);
  const time = (t) => timeText(scene, t, span);
  const times = [
    event.end === null
      ? `called at ${time(event.post)}, never finished`
      : `${time(event.post)} to ${time(event.end)}`,
  ];
  if (event.waited > 0) times.push(`waited ${time(event.waited)}`);
  if (event.transferred > 0) times.push(`transferred ${time(event.transferred)}`);
  const rank = scene.lanes[event.row].rank;
  return {
    head: `rank ${rank}: ${event.call}`,
    size: [event.size, event.group].filter(Boolean).join("  in "),
    time: times.join(", "),
    place: event.place,
    code: event.code,
  };
}

const sentence = (told) => Object.values(told).filter(Boolean).join("; ");

/** The event under a row and a time, the shortest first; `reach` is how near in time is near. */
function eventAt(scene, row, t, reach) {
  let best = null, length = Infinity;
  for (const index of scene.lanes[row]?.events ?? []) {
    const event = scene.events[index];
    const end = endOf(scene, event);
    if (t < event.post - reach || t > end + reach) continue;
    const inside = t >= event.post && t <= end;
    const own = (end - event.post) + (inside ? 0 : reach);
    if (own < length) [best, length] = [index, own];
  }
  return best;
}

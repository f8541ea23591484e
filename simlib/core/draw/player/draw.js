// Drawing a scene on a canvas. Colour says which rank; fill and hatch say what happens.

const GUTTER = 92, RIGHT = 16, TOP = 10, AXIS = 30;
const STRIP = 12;  // of a stream of a GPU, below the lane of its rank

/** The streams of a lane, each a name and its states; a page of an older simlib has none. */
const streamsOf = (lane) => lane.streams ?? [];

/** The channels of "#rrggbb" or "rgb(...)". */
function rgb(color) {
  if (color[0] !== "#") return color.match(/[\d.]+/g).slice(0, 3).map(Number);
  return [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16));
}

function mix(color, other, share) {
  const b = rgb(other);
  return `rgb(${rgb(color).map((x, i) => Math.round(x + (b[i] - x) * share)).join(",")})`;
}

/** How far two colours are apart, from 1 to 21: WCAG 2.1. */
function contrast(one, other) {
  const light = (color) => rgb(color).map((x) => x / 255)
    .map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4))
    .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
  const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

/** A colour with this share of black or white, or with what it needs to be seen on the paper. */
function visible(color, paper, share = 0) {
  const end = brightness(paper) < 128 ? "#ffffff" : "#000000";
  while (share < 1 && contrast(mix(color, end, share), paper) < 3) share += 0.02;
  return mix(color, end, share);
}

const brightness = (color) => rgb(color).reduce((sum, x, i) => sum + x * [0.3, 0.59, 0.11][i], 0);

/** The colours of the page's theme, and each rank's colours on it. */
function readTheme(root, scene) {
  const style = getComputedStyle(root);
  const pen = document.createElement("canvas").getContext("2d");
  const read = (name) => {
    pen.fillStyle = style.getPropertyValue(name);  // "white" comes back as "#ffffff"
    return pen.fillStyle;
  };
  const paper = read("--rbr-paper"), ink = read("--rbr-ink");
  const dark = brightness(paper) < 128;
  const ranks = scene.lanes.map(({ color, on_dark }) => {
    const fill = dark ? on_dark : color;
    return {
      fill,
      light: mix(fill, paper, 0.55),
      pale: mix(fill, paper, 0.72),
      palest: mix(fill, paper, 0.85),
      edge: visible(fill, paper, 0.25),
      hatch: visible(fill, paper),
      line: visible(fill, paper, 0.3),
    };
  });
  return { paper, ink, grey: read("--rbr-grey"), grid: read("--rbr-grid"), dark, ranks,
           accent: read("--rbr-accent"), font: style.fontFamily };
}

/** Where things are: pixels for times and rows. */
function layoutOf(scene, width, view) {
  const lanes = scene.lanes.length;
  const steps = [[1, 62], [4, 58], [8, 46], [16, 30], [64, 13]];
  const next = Math.max(1, steps.findIndex(([n]) => n >= lanes));
  const [[n0, p0], [n1, p1]] = [steps[next - 1], steps[next]];
  const base = p0 + (p1 - p0) * clamp((lanes - n0) / (n1 - n0), 0, 1);
  const half = base * clamp(0.36 - (base - 13) * 0.0033, 0.25, 0.36);
  const strips = Math.max(0, ...scene.lanes.map((lane) => streamsOf(lane).length));
  const pitch = base + strips * STRIP;
  const y = (row) => TOP + row * pitch + base / 2;
  const left = GUTTER, right = width - RIGHT;
  const perSecond = (right - left) / (view.end - view.begin);
  return {
    width, height: TOP + pitch * lanes + AXIS, pitch, base, half, left, right, y,
    bottom: TOP + pitch * lanes,
    x: (t) => left + (t - view.begin) * perSecond,
    t: (x) => view.begin + (x - left) / perSecond,
    gap: (row) => TOP + (row + 1) * pitch,  // between a row and the next, below its strips
    strip: (row, index) => y(row) + half + 3 + (index + 0.5) * STRIP,
    row: (y) => Math.floor((y - TOP) / pitch),
    perSecond,
  };
}

function hatchPattern(context, color, crossed = false) {
  const tile = document.createElement("canvas");
  const size = 14;
  tile.width = tile.height = size;
  const pen = tile.getContext("2d");
  pen.strokeStyle = color;
  pen.lineWidth = 2.2;
  for (const shift of [-size, 0, size]) {
    pen.beginPath();
    pen.moveTo(shift - 2, size + 2);
    pen.lineTo(shift + size + 2, -2);
    if (crossed) {
      pen.moveTo(shift - 2, -2);
      pen.lineTo(shift + size + 2, size + 2);
    }
    pen.stroke();
  }
  const pattern = context.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(0.5));
  return pattern;
}

/** Everything that does not depend on the playhead, onto a context of CSS pixels. */
function drawScene(context, scene, layout, theme, view) {
  const labels = new Labels(context, layout, theme);
  context.save();
  context.beginPath();
  context.rect(layout.left - 1, 0, layout.right - layout.left + 2, layout.bottom + 1);
  context.clip();
  drawGrid(context, scene, layout, theme, view);
  drawBands(context, scene, layout, theme, view);
  drawLanes(context, scene, layout, theme, view, labels);
  drawArrows(context, scene, layout, theme, view, labels);
  labelPieces(context, scene, layout, theme, view);
  labelBands(scene, layout, view, labels);
  labelCalls(scene, layout, view, labels);
  context.restore();
}

/** Round times for the axis, at least `apart` pixels from each other. */
function ticksOf(scene, layout, view, apart = 84) {
  const least = apart / layout.perSecond * scene.scale;
  const power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((n) => n * power).find((s) => s >= least) / scene.scale;
  const ticks = [];
  for (let n = Math.ceil(view.begin / step - 1e-9); n * step <= view.end + step * 1e-9; n++) {
    ticks.push(n * step);
  }
  const digits = clamp(-Math.floor(Math.log10(step * scene.scale) + 1e-9), 0, 9);
  return ticks.map((t) => [t, (t * scene.scale).toFixed(digits)]);
}

function drawGrid(context, scene, layout, theme, view) {
  context.fillStyle = theme.grid;
  for (const [t] of ticksOf(scene, layout, view)) {
    context.fillRect(Math.round(layout.x(t)), TOP, 1, layout.bottom - TOP);
  }
}

function drawLanes(context, scene, layout, theme, view, labels) {
  scene.lanes.forEach((lane, row) => {
    const colors = theme.ranks[row], y = layout.y(row), half = layout.half;
    const isNamed = Object.keys(scene.shades).length > 0;
    const fills = {
      computing: isNamed ? colors.palest : colors.fill, "in a call": colors.palest,
      "async op in flight": colors.pale,
      waiting: theme.paper, transferring: colors.light,
    };
    const hatch = hatchPattern(context, colors.hatch);
    for (const name of STATES) {
      const high = name === "async op in flight" ? half * 0.38 : -half;
      for (const [start, end] of lane.states[name]) {
        if (end < view.begin || start > view.end) continue;
        const x = Math.max(layout.x(start), -20), right = Math.min(layout.x(end), layout.width + 20);
        const box = [x, y + high, right - x, half - high];
        context.fillStyle = fills[name];
        context.fillRect(...box);
        if (name === "waiting") {
          context.fillStyle = hatch;
          context.fillRect(...box);
        }
        context.strokeStyle = colors.edge;
        context.lineWidth = 0.8;
        if (right - x > 2) context.strokeRect(...box);
      }
      if (name === "computing") drawPieces(context, lane, row, layout, theme, view);
    }
    context.fillStyle = colors.edge;
    for (const index of lane.events) {
      const x = layout.x(scene.events[index].post);
      if (x > layout.left - 2 && x < layout.right + 2) context.fillRect(x - 0.6, y - half, 1.2, 2 * half);
    }
    drawStreams(context, lane, row, layout, theme, view, labels);
    if (lane.open) drawCross(context, Math.min(layout.x(lane.until), layout.right - 6), y, half, theme);
  });
}

/** What a rank's GPU did, a strip for each stream; labels keep off it. */
function drawStreams(context, lane, row, layout, theme, view, labels) {
  const { fill, light, edge, hatch } = theme.ranks[row];
  const fills = {
    kernel: fill, operator: fill, "communication kernel": light,
    "exposed communication": hatchPattern(context, hatch, true), copy: mix(fill, theme.paper, 0.3),
  };
  streamsOf(lane).forEach(([, states], index) => {
    const low = layout.strip(row, index) + STRIP / 2 - 1;
    for (const [name, parts] of Object.entries(states)) {
      const high = name === "copy" ? (STRIP - 3) / 2 : STRIP - 3;
      for (const [start, end] of parts) {
        if (end < view.begin || start > view.end) continue;
        const x = Math.max(layout.x(start), -20), to = Math.min(layout.x(end), layout.width + 20);
        const box = [x, low - high, Math.max(to - x, 0.5), high];
        context.fillStyle = theme.paper;
        context.fillRect(...box);
        context.fillStyle = fills[name];
        context.fillRect(...box);
        context.strokeStyle = edge;
        context.lineWidth = 0.6;
        if (to - x > 2) context.strokeRect(...box);
        labels.taken.push([x, low - high, to, low]);
      }
    }
  });
}

/** What the program has named of its work: shades of the rank's colour. */
function drawPieces(context, lane, row, layout, theme, view) {
  const { left, right, half } = layout, y = layout.y(row);
  for (const [start, end, share] of lane.pieces) {
    if (end < view.begin || start > view.end) continue;
    const x = Math.max(layout.x(start), left - 20), to = Math.min(layout.x(end), right + 20);
    context.fillStyle = pieceColor(theme, row, share);
    context.fillRect(x, y - half, to - x, 2 * half);
    context.strokeStyle = theme.paper;
    context.lineWidth = 0.8;
    if (to - x > 2) context.strokeRect(x, y - half, to - x, 2 * half);
  }
}

const pieceColor = (theme, row, share) =>
  mix(theme.ranks[row].fill, theme.dark ? "#ffffff" : "#000000", share);

/** Their names, where there is room; of several numbers the last one, where there is little. */
function labelPieces(context, scene, layout, theme, view) {
  if (layout.half < 6) return;
  context.font = `11px ${theme.font}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  scene.lanes.forEach((lane, row) => {
    for (const [start, end, share, label] of lane.pieces) {
      const x = Math.max(layout.x(start), layout.left), to = Math.min(layout.x(end), layout.right);
      const fits = (text) => text && context.measureText(text).width + 4 <= to - x;
      const text = [label, label.match(/\d+$/)?.[0]].find(fits);
      if (!text) continue;
      context.fillStyle = brightness(pieceColor(theme, row, share)) > 120 ? "#000000" : "#ffffff";
      context.fillText(text, (x + to) / 2, layout.y(row));
    }
  });
}

function drawCross(context, x, y, half, theme) {
  const size = clamp(half * 0.38, 2.5, 6);
  for (const [color, width] of [[theme.paper, 5], [theme.ink, 2.6]]) {
    context.strokeStyle = color;
    context.lineWidth = width;
    context.lineCap = "round";
    context.beginPath();
    for (const way of [-1, 1]) {
      context.moveTo(x - size, y - size * way);
      context.lineTo(x + size, y + size * way);
    }
    context.stroke();
  }
}

/** The outline of a collective: down one side of its ops, up the other. */
function bandPath(context, scene, layout, band) {
  const events = band.events.map((index) => scene.events[index]);
  context.beginPath();
  for (let i = 0; i + 1 < events.length; i++) {
    const [a, b] = [events[i], events[i + 1]];
    const low = layout.y(a.row) + layout.half, high = layout.y(b.row) - layout.half;
    context.moveTo(layout.x(a.post), low);
    context.lineTo(Math.max(layout.x(endOf(scene, a)), layout.x(a.post) + 1), low);
    context.lineTo(Math.max(layout.x(endOf(scene, b)), layout.x(b.post) + 1), high);
    context.lineTo(layout.x(b.post), high);
    context.closePath();
  }
}

function bandSpan(scene, band) {
  const events = band.events.map((index) => scene.events[index]);
  return [
    Math.min(...events.map((event) => event.post)),
    Math.max(...events.map((event) => endOf(scene, event))),
  ];
}

function drawBands(context, scene, layout, theme, view) {
  context.fillStyle = mix(theme.paper, theme.ink, 0.11);
  context.strokeStyle = mix(theme.paper, theme.ink, 0.34);
  context.lineWidth = 0.6;
  for (const band of scene.bands) {
    const [start, end] = bandSpan(scene, band);
    if (end < view.begin || start > view.end) continue;
    bandPath(context, scene, layout, band);
    context.fill();
    context.stroke();
  }
}

/** Tail and tip of an arrow in pixels; one that never arrived ends between the lanes. */
function arrowEnds(scene, layout, arrow) {
  const way = Math.sign(arrow.dst - arrow.src);
  const x0 = layout.x(arrow.start), y0 = layout.y(arrow.src) + way * layout.half;
  if (arrow.end === null) {
    return [x0, y0, x0 + 24, layout.y(arrow.src) + way * (layout.base * 0.5)];
  }
  return [x0, y0, layout.x(arrow.end), layout.y(arrow.dst) - way * layout.half];
}

function drawArrows(context, scene, layout, theme, view, labels) {
  const seen = scene.arrows.filter(
    (arrow) => (arrow.end ?? arrow.start) >= view.begin && arrow.start <= view.end
  );
  for (const arrow of seen) strokeArrow(context, scene, layout, theme, arrow);
  if (seen.length > 100) return;
  labels.arrows = seen.map((arrow) => arrowEnds(scene, layout, arrow));
  seen.forEach((arrow, index) => {
    if (arrow.end !== null) labels.along(arrow.text, ...labels.arrows[index], layout);
  });
}

function strokeArrow(context, scene, layout, theme, arrow, strong = false) {
  const [x0, y0, x1, y1] = arrowEnds(scene, layout, arrow);
  const color = theme.ranks[arrow.src].line;
  const length = Math.hypot(x1 - x0, y1 - y0) || 1e-9;
  const size = Math.min(clamp(layout.base * 0.16, 4, 8), length) * (arrow.wire ? 0.75 : 1);
  const ux = (x1 - x0) / length, uy = (y1 - y0) / length;
  const never = arrow.end === null;
  const width = (arrow.wire ? 0.9 : 1.5) * (strong ? 1.9 : 1);
  for (const [ink, w] of [[theme.paper, width + 2], [color, width]]) {
    context.strokeStyle = ink;
    context.lineWidth = w;
    context.lineCap = "butt";
    context.setLineDash(never ? [3.5, 2.5] : []);
    context.beginPath();
    context.moveTo(x0, y0);
    context.lineTo(x1 - (never ? 0 : ux * size * 0.8), y1 - (never ? 0 : uy * size * 0.8));
    context.stroke();
  }
  context.setLineDash([]);
  dot(context, x0, y0, arrow.wire ? 1.4 : 2.2, color);
  if (never) return dot(context, x1, y1, 3, theme.paper, color);
  context.fillStyle = color;
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x1 - ux * size - uy * size * 0.42, y1 - uy * size + ux * size * 0.42);
  context.lineTo(x1 - ux * size + uy * size * 0.42, y1 - uy * size - ux * size * 0.42);
  context.fill();
}

function dot(context, x, y, radius, fill, stroke) {
  context.beginPath();
  context.arc(x, y, radius, 0, 7);
  context.fillStyle = fill;
  context.fill();
  if (!stroke) return;
  context.strokeStyle = stroke;
  context.lineWidth = 1.4;
  context.stroke();
}

// The words in the picture.

/** Whether a line from (x0, y0) to (x1, y1) passes a box. */
function crosses([x0, y0, x1, y1], [left, top, right, bottom]) {
  const low = Math.max(Math.min(y0, y1), top), high = Math.min(Math.max(y0, y1), bottom);
  if (low > high) return false;
  const x = (y) => (y1 === y0 ? x0 : x0 + ((x1 - x0) * (y - y0)) / (y1 - y0));
  const [a, b] = [x(low), x(high)];
  return Math.max(a, b) >= left && Math.min(a, b) <= right;
}

/** Text that never covers other text or an arrow: what does not fit is left out. */
class Labels {
  constructor(context, layout, theme) {
    Object.assign(this, { context, layout, theme, taken: [], arrows: [] });
  }

  width(text) {
    this.context.font = `11px ${this.theme.font}`;
    return this.context.measureText(text).width;
  }

  /** Write the text in the middle of a spot, if it is free; returns whether. */
  place(text, x, y) {
    const w = this.width(text) / 2 + 3, h = 7;
    const { left, right, bottom } = this.layout;
    const box = [x - w, y - h, x + w, y + h];
    const free = box[0] >= left && box[2] <= right && box[1] >= 0 && box[3] <= bottom
      && this.taken.every((b) => box[2] < b[0] || box[0] > b[2] || box[3] < b[1] || box[1] > b[3])
      && !this.arrows.some((arrow) => crosses(arrow, box));
    if (!free) return false;
    this.taken.push(box);
    const { context, theme } = this;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.lineJoin = "round";
    context.lineWidth = 4;
    context.strokeStyle = theme.paper;
    context.strokeText(text, x, y);
    context.fillStyle = theme.ink;
    context.fillText(text, x, y);
    return true;
  }

  /** Beside an arrow, in a gap between lanes that it passes. */
  along(text, x0, y0, x1, y1, layout) {
    if (layout.base - 2 * layout.half < 15 || Math.abs(y1 - y0) < 8) return;
    const w = this.width(text) / 2 + 7;
    const low = Math.min(y0, y1), high = Math.max(y0, y1);
    for (let row = 0; row + 1 < layout.bottom / layout.pitch; row++) {
      const y = layout.gap(row);
      if (y < low || y > high) continue;
      const x = x0 + (x1 - x0) * ((y - y0) / (y1 - y0));
      if (this.place(text, x + w, y) || this.place(text, x - w, y)) return;
    }
  }
}

/** Name the part of a band between two events: above the lower lane, or half-way. */
function labelBand(a, b, text, scene, layout, labels) {
  const low = layout.y(a.row) + layout.half, high = layout.y(b.row) - layout.half;
  const [above, middle] = [layout.gap(b.row - 1), (low + high) / 2];
  return (layout.pitch > layout.base ? [above, middle] : [middle]).some((y) => {
    const between = (one, other) => one + (other - one) * ((y - low) / (high - low));
    const x0 = Math.max(between(layout.x(a.post), layout.x(b.post)), layout.left);
    const end = between(layout.x(endOf(scene, a)), layout.x(endOf(scene, b)));
    const x1 = Math.min(end, layout.right);
    return x1 - x0 >= labels.width(text) * 0.8 && labels.place(text, (x0 + x1) / 2, y);
  });
}

function labelBands(scene, layout, view, labels) {
  if (layout.base - 2 * layout.half < 13 || scene.bands.length > 200) return;
  for (const band of scene.bands) {
    if (band.events.length < 2) continue;
    for (let i = 0; i + 1 < band.events.length; i++) {
      const [a, b] = [scene.events[band.events[i]], scene.events[band.events[i + 1]]];
      if (labelBand(a, b, band.text, scene, layout, labels)) break;
    }
  }
}

function labelCalls(scene, layout, view, labels) {
  if (layout.half < 8 || scene.events.length > 400) return;
  const joined = new Set(scene.bands.flatMap((band) => (band.events.length > 1 ? band.events : [])));
  scene.events.forEach((event, index) => {
    const from = event.async ? event.wait : event.post;
    if (from === null || joined.has(index)) return;
    const x0 = Math.max(layout.x(from), layout.left);
    const x1 = Math.min(layout.x(endOf(scene, event)), layout.right);
    const text = event.async ? `wait: ${event.call}` : event.call;
    const words = [text, event.call.split("(")[0]].find((w) => labels.width(w) + 8 <= x1 - x0);
    if (words) labels.place(words, (x0 + x1) / 2, layout.y(event.row));
  });
}

// The player itself: what is shown, the moment it stands at, and what the learner's hands do.

const PLAY_S = 8;  // a whole run at speed 1
const LINGER_S = 0.45;  // of your own time: a message that took less is still seen to fly
const MOST_ZOOM = 1e5;

class Player {
  constructor(scene, host) {
    this.scene = prepare(scene);
    this.page = makePage(scene);
    this.view = { begin: scene.begin, end: scene.end };
    this.t = scene.end;
    this.speed = 1;
    this.playing = false;
    this.focus = null;  // the event under the mouse or with the focus
    this.cursor = 0;  // the event that Tab leads to
    this.back = document.createElement("canvas");
    this.quiet = matchMedia("(prefers-reduced-motion: reduce)");
    host.append(this.page.root);
    this.listen();
    this.restyle();
    this.seek(this.t);
  }

  get span() {
    return this.view.end - this.view.begin;
  }

  get whole() {
    return this.scene.end - this.scene.begin;
  }

  // What is shown

  restyle() {
    this.theme = readTheme(this.page.root, this.scene);
    this.resize();
  }

  resize() {
    const width = this.page.stage.clientWidth;
    if (!width) return;
    this.layout = layoutOf(this.scene, width, this.view);
    const { canvas } = this.page;
    this.ratio = window.devicePixelRatio || 1;
    for (const each of [canvas, this.back]) {
      each.width = Math.round(width * this.ratio);
      each.height = Math.round(this.layout.height * this.ratio);
    }
    canvas.style.height = `${this.layout.height}px`;
    this.redraw();
  }

  /** Draw the scene anew, at another zoom or in other colours. */
  redraw() {
    if (!this.layout) return;
    this.layout = layoutOf(this.scene, this.layout.width, this.view);
    const context = this.back.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.fillStyle = this.theme.paper;
    context.fillRect(0, 0, this.layout.width, this.layout.height);
    drawScene(context, this.scene, this.layout, this.theme, this.view);
    this.showPan();
    this.showCursor();
    this.paint();
  }

  /** One frame: the past in full colour, the future pale, what flies, what each rank does. */
  paint() {
    if (!this.layout) return;
    const { layout, theme, ratio, back } = this;
    const context = this.page.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = theme.paper;
    context.fillRect(0, 0, layout.width, layout.height);
    const x = clamp(layout.x(this.t), layout.left, layout.right);
    const cut = Math.round(x * ratio), h = back.height;
    if (cut > 0) context.drawImage(back, 0, 0, cut, h, 0, 0, cut / ratio, layout.height);
    context.globalAlpha = 0.3;
    const rest = back.width - cut;
    if (rest > 0) context.drawImage(back, cut, 0, rest, h, cut / ratio, 0, rest / ratio, layout.height);
    context.globalAlpha = 1;
    this.paintMoving(context);
    this.paintFocus(context);
    this.paintFrame(context);
  }

  /** Collectives under way, messages in flight, the line of the moment. */
  paintMoving(context) {
    const { scene, layout, theme, t } = this;
    context.save();
    context.beginPath();
    context.rect(layout.left - 6, 0, layout.right - layout.left + 12, layout.bottom + 4);
    context.clip();
    const within = t >= this.view.begin && t <= this.view.end;
    if (within) {
      context.fillStyle = theme.ink;
      context.fillRect(layout.x(t) - 0.75, TOP - 4, 1.5, layout.bottom - TOP + 8);
    }
    context.strokeStyle = theme.ink;
    context.lineWidth = 1.6;
    if (t < scene.end) {
      for (const band of scene.bands) {
        const [start, end] = bandSpan(scene, band);
        if (t < start || t >= end || band.events.length < 2) continue;
        bandPath(context, scene, layout, band);
        context.stroke();
      }
    }
    const linger = this.playing && !this.quiet.matches ? LINGER_S * this.rate : 0;
    for (const arrow of scene.arrows) this.paintMessage(context, arrow, linger);
    context.restore();
  }

  /** A message as a dot on its way; `linger` is the least time (of the run) it is seen for. */
  paintMessage(context, arrow, linger) {
    const { scene, layout, theme, t } = this;
    if (t < arrow.start) return;
    const end = arrow.end ?? Math.max(scene.end, arrow.start);
    const shown = Math.max(end - arrow.start, linger);
    const share = shown > 0 ? (t - arrow.start) / shown : 1;
    if (share >= 1) return;
    strokeArrow(context, scene, layout, theme, arrow, true);
    const [x0, y0, x1, y1] = arrowEnds(scene, layout, arrow);
    const at = arrow.end === null ? Math.min(1, share * 4) : share;
    const radius = clamp(layout.pitch * 0.1, 3, 6.5);
    dot(context, x0 + (x1 - x0) * at, y0 + (y1 - y0) * at, radius, theme.ranks[arrow.src].fill, theme.ink);
  }

  paintFocus(context) {
    if (this.focus === null) return;
    const box = this.boxOf(this.focus);
    context.strokeStyle = this.theme.ink;
    context.lineWidth = 2.2;
    context.strokeRect(box.x - 2, box.y - 2, box.width + 4, box.height + 4);
  }

  /** Names of the ranks, what each does now, the axis. */
  paintFrame(context) {
    const { scene, layout, theme } = this;
    const size = clamp(layout.pitch * 0.8, 9, 13);
    const both = layout.pitch >= 34;
    context.textBaseline = "middle";
    scene.lanes.forEach((lane, row) => {
      const y = layout.y(row);
      context.fillStyle = theme.ranks[row].fill;
      const side = clamp(layout.pitch * 0.3, 4, 11);
      context.fillRect(12 - side / 2, (both ? y - 8 : y) - side / 2, side, side);
      context.textAlign = "left";
      context.fillStyle = theme.ink;
      context.font = `600 ${size}px ${theme.font}`;
      context.fillText(`rank ${lane.rank}`, 23, both ? y - 8 : y);
      if (!both) return;
      const state = stateAt(lane, this.t);
      context.fillStyle = theme.grey;
      context.font = `11px ${theme.font}`;
      context.fillText(state === "before" ? "" : state, 23, y + 8);
    });
    context.font = `11px ${theme.font}`;
    context.fillStyle = theme.grey;
    context.textAlign = "center";
    const label = `${scene.clock} (${scene.unit})`;
    const room = layout.right - context.measureText(label).width - 26;
    for (const [t, text] of ticksOf(scene, layout, this.view)) {
      const x = layout.x(t);
      context.fillRect(x, layout.bottom, 1, 4);
      if (x < room) context.fillText(text, x, layout.bottom + 13);
    }
    context.textAlign = "right";
    context.fillText(label, layout.right, layout.bottom + 13);
    context.fillRect(layout.left, layout.bottom, layout.right - layout.left, 1);
  }

  /** The rectangle of an event, in pixels, inside the visible part. */
  boxOf(index) {
    const { scene, layout } = this;
    const event = scene.events[index];
    const x = clamp(layout.x(event.post), layout.left, layout.right);
    const right = clamp(layout.x(endOf(scene, event)), x, layout.right);
    const y = layout.y(event.row) - layout.half;
    return { x, y, width: Math.max(3, right - x), height: 2 * layout.half };
  }

  showPan() {
    const { page, view, scene } = this;
    page.pan.hidden = this.span >= this.whole * 0.9999;
    page.pan.firstChild.style.left = `${((view.begin - scene.begin) / this.whole) * 100}%`;
    page.pan.firstChild.style.width = `${(this.span / this.whole) * 100}%`;
    page.out.disabled = page.all.disabled = page.pan.hidden;
    page.root.dataset.view = `${view.begin} ${view.end}`;
  }

  showCursor() {
    const { scene, page } = this;
    page.event.hidden = !scene.events.length;
    if (page.event.hidden) return;
    const box = this.boxOf(this.cursor);
    Object.assign(page.event.style, {
      left: `${box.x}px`, top: `${box.y}px`, width: `${box.width}px`, height: `${box.height}px`,
    });
    const told = sentence(tellEvent(scene, scene.events[this.cursor]));
    page.event.setAttribute("aria-label",
      `Call ${this.cursor + 1} of ${scene.events.length}: ${told}. Enter goes there, arrow keys to others.`);
  }

  // Time

  /** Seconds of the run that a second of your own shows. */
  get rate() {
    return (this.whole / PLAY_S) * this.speed;
  }

  seek(t, speak = false) {
    const { scene, page } = this;
    this.t = clamp(t, scene.begin, scene.end);
    const text = `${timeText(scene, this.t)} / ${timeText(scene, scene.end)}`;
    page.slider.value = ((this.t - scene.begin) / this.whole) * 1000;
    page.slider.setAttribute("aria-valuetext", timeText(scene, this.t));
    page.time.textContent = text;
    page.root.dataset.time = this.t;
    const told = tellMoment(scene, this.t).join("; ");
    if (told !== page.now.textContent) page.now.textContent = told;
    if (speak) page.spoken.textContent = `${timeText(scene, this.t)}: ${told}`;
    if (this.follow()) this.redraw();
    else this.paint();
  }

  /** Keep the moment in sight; returns whether what is shown had to move. */
  follow() {
    const { view, t } = this;
    const high = this.playing ? view.begin + this.span * 0.75 : view.end;
    if (t >= view.begin && t <= high) return false;
    const begin = t < view.begin ? t - this.span * 0.1 : t - this.span * (this.playing ? 0.75 : 0.9);
    return this.setView(begin, this.span);
  }

  setView(begin, span) {
    const { scene, view } = this;
    const next = clamp(span, this.whole / MOST_ZOOM, this.whole);
    const from = clamp(begin, scene.begin, scene.end - next);
    if (from === view.begin && from + next === view.end) return false;
    this.view = { begin: from, end: from + next };
    return true;
  }

  zoom(factor, at = this.t) {
    const pivot = clamp(at, this.view.begin, this.view.end);
    const share = (pivot - this.view.begin) / this.span;
    const span = this.span / factor;
    if (this.setView(pivot - share * span, span)) this.redraw();
  }

  shift(share) {
    if (this.setView(this.view.begin + share * this.span, this.span)) this.redraw();
  }

  toggle(play = !this.playing) {
    const { page, scene } = this;
    this.playing = play;
    page.play.innerHTML = svgIcon(play ? "pause" : "play");
    const label = play ? "Stop (Space)" : "Play (Space)";
    page.play.setAttribute("aria-label", label);
    page.play.title = label;
    page.root.dataset.state = play ? "playing" : "paused";
    cancelAnimationFrame(this.frame);
    if (!play) return this.seek(this.t, true);
    if (this.t >= scene.end) this.t = scene.begin;
    let last = null;
    const step = (now) => {
      if (!page.root.isConnected) return this.toggle(false);
      const passed = last === null ? 0 : (now - last) / 1000;
      last = now;
      this.seek(this.t + passed * this.rate);
      if (this.t >= scene.end) this.toggle(false);
      else this.frame = requestAnimationFrame(step);
    };
    this.frame = requestAnimationFrame(step);
  }

  /** Go to the next (1) or previous (-1) moment at which a rank calls something. */
  leap(way) {
    const { moments, begin, end } = this.scene;
    const close = this.whole * 1e-9;
    const found = way > 0
      ? moments.find((t) => t > this.t + close)
      : moments.findLast((t) => t < this.t - close);
    this.halt();
    this.seek(found ?? (way > 0 ? end : begin), true);
  }

  halt() {
    if (this.playing) this.toggle(false);
  }

  // Events

  point(index, x, y) {
    if (index === this.focus && index === null) return;
    this.focus = index;
    if (index === null) this.page.tip.hidden = true;
    else showTip(this.page, this.scene, this.theme, this.scene.events[index], x, y);
    this.paint();
  }

  pointAtCursor() {
    const event = this.scene.events[this.cursor];
    const hidden = endOf(this.scene, event) < this.view.begin || event.post > this.view.end;
    if (hidden && this.setView(event.post - this.span / 2, this.span)) this.redraw();
    this.showCursor();
    const box = this.boxOf(this.cursor);
    this.point(this.cursor, box.x, box.y + box.height);
  }

  /** From the event of the cursor to a neighbour: in its lane, or at its time in another one. */
  walk(key) {
    const { scene } = this;
    const event = scene.events[this.cursor];
    const own = scene.lanes[event.row].events;
    const place = own.indexOf(this.cursor);
    let next;
    if (key === "ArrowLeft") next = own[place - 1];
    if (key === "ArrowRight") next = own[place + 1];
    if (key === "Home") next = own[0];
    if (key === "End") next = own.at(-1);
    const way = { ArrowUp: -1, ArrowDown: 1 }[key];
    for (let row = event.row + way; way && next === undefined && scene.lanes[row]; row += way) {
      const others = scene.lanes[row].events;
      const gap = (index) => Math.abs(scene.events[index].post - event.post);
      next = others.length ? others.reduce((a, b) => (gap(b) < gap(a) ? b : a)) : undefined;
    }
    if (next !== undefined) this.cursor = next;
    this.pointAtCursor();
  }

  // Hands

  listen() {
    const { page } = this;
    page.play.onclick = () => this.toggle();
    page.previous.onclick = () => this.leap(-1);
    page.next.onclick = () => this.leap(1);
    page.in.onclick = () => this.zoom(2);
    page.out.onclick = () => this.zoom(0.5);
    page.all.onclick = () => this.zoom(1e-9);
    page.speed.onchange = () => (this.speed = Number(page.speed.value));
    page.slider.oninput = () => {
      this.halt();
      this.seek(this.scene.begin + (page.slider.value / 1000) * this.whole);
    };
    page.slider.onchange = () => this.seek(this.t, true);
    page.root.addEventListener("keydown", (press) => this.onKey(press));
    page.event.onfocus = () => this.pointAtCursor();
    page.event.onblur = () => this.point(null);
    page.event.onclick = () => this.seek(this.scene.events[this.cursor].post, true);
    this.listenToMouse();
    this.sizes = new ResizeObserver(() => this.resize());
    this.sizes.observe(page.stage);
    // JupyterLab names its theme on the body.
    this.themes = new MutationObserver(() => this.restyle());
    this.themes.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-name", "class"] });
  }

  listenToMouse() {
    const { stage, pan } = this.page;
    const time = (mouse) => this.layout.t(mouse.clientX - stage.getBoundingClientRect().left);
    this.drag(stage, (mouse) => {
      this.halt();
      this.seek(clamp(time(mouse), this.view.begin, this.view.end));
    });
    this.drag(pan, (mouse) => {
      const box = pan.getBoundingClientRect();
      const share = (mouse.clientX - box.left) / box.width;
      if (this.setView(this.scene.begin + share * this.whole - this.span / 2, this.span)) this.redraw();
    });
    stage.addEventListener("pointermove", (mouse) => {
      const box = stage.getBoundingClientRect();
      const [x, y] = [mouse.clientX - box.left, mouse.clientY - box.top];
      const row = x < this.layout.left ? -1 : this.layout.row(y);
      this.point(eventAt(this.scene, row, this.layout.t(x), 5 / this.layout.perSecond), x, y);
    });
    stage.addEventListener("pointerleave", () => this.point(null));
    stage.addEventListener("wheel", (wheel) => {
      if (wheel.ctrlKey || wheel.metaKey) this.zoom(Math.exp(-wheel.deltaY * 0.004), time(wheel));
      else if (wheel.shiftKey || Math.abs(wheel.deltaX) > Math.abs(wheel.deltaY)) {
        this.shift((wheel.deltaX || wheel.deltaY) / this.layout.width);
      } else return;
      wheel.preventDefault();
    }, { passive: false });
  }

  /** Call `move` while the pointer is down on an element, and once when it goes down. */
  drag(target, move) {
    target.addEventListener("pointerdown", (mouse) => {
      if (mouse.button !== 0) return;
      target.setPointerCapture(mouse.pointerId);
      move(mouse);
    });
    target.addEventListener("pointermove", (mouse) => {
      if (target.hasPointerCapture(mouse.pointerId)) move(mouse);
    });
  }

  onKey(press) {
    const own = press.target === this.page.event;
    if (press.ctrlKey || press.metaKey || press.altKey || press.target.matches("select")) return;
    if (own && /^(Arrow|Home|End)/.test(press.key)) this.walk(press.key);
    else if (press.key === " " && press.target.matches("button, summary")) return;
    else if (!this.act(press.key, press.shiftKey ? 10 : 1)) return;
    press.preventDefault();
    press.stopPropagation();
  }

  /** Do what a key means; returns whether it means anything. */
  act(key, times) {
    const step = (way) => {
      this.halt();
      this.seek(this.t + way * times * this.span / 100, true);
    };
    const go = (t) => {
      this.halt();
      this.seek(t, true);
    };
    const does = {
      " ": () => this.toggle(),
      ArrowLeft: () => step(-1), ArrowRight: () => step(1),
      Home: () => go(this.scene.begin), End: () => go(this.scene.end),
      p: () => this.leap(-1), n: () => this.leap(1),
      "+": () => this.zoom(2), "=": () => this.zoom(2), "-": () => this.zoom(0.5),
      0: () => this.zoom(1e-9), "[": () => this.shift(-0.25), "]": () => this.shift(0.25),
      Escape: () => this.point(null),
    }[key.length === 1 ? key.toLowerCase() : key];
    does?.();
    return Boolean(does);
  }

  remove() {
    cancelAnimationFrame(this.frame);
    this.sizes.disconnect();
    this.themes.disconnect();
    this.page.root.remove();
  }
}

export default {
  render({ model, el }) {
    // A copy: the player keeps what it looks up beside the data.
    const player = new Player(structuredClone(model.get("scene")), el);
    return () => player.remove();
  },
};

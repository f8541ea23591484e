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
    this.moved = () => {};  // called whenever another moment or another part is shown
    this.quiet = matchMedia("(prefers-reduced-motion: reduce)");
    host.append(this.page.root);
    listen(this);  // which also draws, as soon as there is a size
    this.seek(this.t);
  }

  get span() {
    return this.view.end - this.view.begin;
  }

  get whole() {
    return this.scene.end - this.scene.begin;
  }

  // What is shown

  /** Draw anew, in the size and the colours that the page has now. */
  refit() {
    // JupyterLab hides cells for a moment when it measures them anew, also as the theme changes.
    const width = this.page.stage.clientWidth || this.layout?.width;
    if (!width) return;  // never shown yet
    this.theme = readTheme(this.page.root, this.scene);
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

  /** Draw anew where the page has other colours now. */
  recolour() {
    if (!this.layout) return;
    const { paper, ink } = readTheme(this.page.root, this.scene);
    if (paper !== this.theme.paper || ink !== this.theme.ink) this.refit();
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
    paint(this);
    this.moved();
  }

  showPan() {
    const { page, view, scene } = this;
    page.pan.hidden = this.span >= this.whole * 0.9999;
    page.pan.firstChild.style.left = `${((view.begin - scene.begin) / this.whole) * 100}%`;
    page.pan.firstChild.style.width = `${(this.span / this.whole) * 100}%`;
    // Not "disabled", which would take the focus from a button as it is pressed.
    for (const each of [page.out, page.all]) each.setAttribute("aria-disabled", page.pan.hidden);
    page.root.dataset.view = `${view.begin} ${view.end}`;
  }

  showCursor() {
    const { scene, page } = this;
    page.event.hidden = !scene.events.length;
    if (page.event.hidden) return;
    const box = boxOf(this, this.cursor);
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
    page.slider.value = ((this.t - scene.begin) / this.whole) * 1000;
    page.slider.setAttribute("aria-valuetext", timeText(scene, this.t));
    page.time.textContent = momentText(scene, this.t);
    page.root.dataset.time = this.t;
    const told = tellMoment(scene, this.t).join("; ");
    if (told !== page.now.textContent) page.now.textContent = told;
    if (speak) page.spoken.textContent = `${timeText(scene, this.t)}: ${told}`;
    if (this.follow()) return this.redraw();
    paint(this);
    this.moved();
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
    let last = null, t = this.t;
    const step = (now) => {
      if (!page.root.isConnected) return this.toggle(false);
      const passed = last === null ? 0 : (now - last) / 1000;
      last = now;
      t = Math.min(t + passed * this.rate, scene.end);
      this.seek(this.quiet.matches ? this.stillAt(t) : t);
      if (this.t >= scene.end) this.toggle(false);
      else this.frame = requestAnimationFrame(step);
    };
    this.frame = requestAnimationFrame(step);
  }

  /** Where nothing is to move: of the moments at which a rank calls something the last before t. */
  stillAt(t) {
    const { moments, begin, end } = this.scene;
    return t >= end ? end : moments.findLast((moment) => moment <= t) ?? begin;
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
    paint(this);
  }

  pointAtCursor() {
    const event = this.scene.events[this.cursor];
    const hidden = endOf(this.scene, event) < this.view.begin || event.post > this.view.end;
    if (hidden && this.setView(event.post - this.span / 2, this.span)) this.redraw();
    this.showCursor();
    const box = boxOf(this, this.cursor);
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

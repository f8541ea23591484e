// The page of a player: its elements, the legend, the text beside an event.

const ICONS = {
  play: "M4 2l10 6-10 6z",
  pause: "M3 2h3.6v12H3zM9.4 2H13v12H9.4z",
  previous: "M3 2h2v12H3zM14 2v12L6 8z",
  next: "M11 2h2v12h-2zM2 2l8 6-8 6z",
  out: "M2 7h12v2H2z",
  in: "M7 2h2v5h5v2H9v5H7V9H2V7h5z",
  all: "M1 3h2v10H1zM13 3h2v10h-2zM4 8l3-3v2h2V5l3 3-3 3V9H7v2z",
};
const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4];
const KEYS = [
  ["Space", "play or stop"], ["←", ""], ["→", "step (with Shift: ten steps)"],
  ["Home", ""], ["End", "first and last moment"], ["P", ""], ["N", "previous and next call"],
  ["+", ""], ["-", "zoom"], ["0", "show all"], ["[", ""], ["]", "move what is shown"],
  ["Tab", "to the calls, then arrow keys walk them"],
];

const TIMELINE = "Moment of the run: Space plays or stops, arrow keys step, P and N go to the calls, "
  + "Tab leads to them one by one.";

const svgIcon = (name) => `<svg viewBox="0 0 16 16" aria-hidden="true"><path d="${ICONS[name]}"/></svg>`;

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "html") made.innerHTML = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const button = (name, label, icon = name) =>
  element("button", { type: "button", class: `rbr-${name}`, "aria-label": label, title: label,
                      html: svgIcon(icon) });

/** Signs in grey of what occurs in a scene: hue only says which rank. */
function legendOf(scene) {
  const has = (name) => scene.lanes.some((lane) => lane.states[name].length);
  const box = (inner) => `<svg viewBox="0 0 20 12" aria-hidden="true">${inner}</svg>`;
  const rect = (fill, share = 1) =>
    `<rect width="20" height="12" fill="${fill}" fill-opacity="${share}" stroke="currentColor" stroke-width=".8"/>`;
  const lines = "M0 8L5 0M2 12L10 0M7 12L15 0M12 12L20 0M17 12L20 7.5";
  const shades = Object.entries(scene.shades);
  const shade = (share) => `color-mix(in srgb, currentColor, var(--rbr-ink) ${100 * share}%)`;
  const computing = shades.length ? "outside of pieces" : "computing";
  const pale = rect("currentColor", 0.15);
  const onGpu = (name) => scene.lanes.some((lane) => streamsOf(lane).some(([, states]) => states[name]));
  const other = "M0 4L5 12M2 0L10 12M7 0L15 12M12 0L20 12M17 0L20 4.5";
  const signs = {
    [computing]: [has("computing"), shades.length ? pale : rect("currentColor")],
    ...Object.fromEntries(shades.map(([name, share]) => [name, [true, rect(shade(share))]])),
    waiting: [has("waiting"), `${rect("none")}<path d="${lines}" stroke="currentColor"/>`],
    transferring: [has("transferring"), rect("currentColor", 0.45)],
    "in a call": [has("in a call"), pale],
    "async op in flight": [has("async op in flight"),
      `${rect("currentColor")}<rect y="8" width="20" height="4" fill="var(--rbr-paper)" opacity=".7"/>`],
    message: [scene.arrows.some((a) => a.end !== null),
      `<path d="M0 6h14" stroke="currentColor" stroke-width="1.6"/><path d="M20 6l-8-4v8z" fill="currentColor"/>`],
    "not received": [scene.arrows.some((a) => a.end === null),
      `<path d="M0 6h14" stroke="currentColor" stroke-width="1.6" stroke-dasharray="3 2"/><circle cx="16" cy="6" r="2.6" fill="none" stroke="currentColor" stroke-width="1.4"/>`],
    collective: [scene.bands.some((band) => band.events.length > 1),
      `<rect width="20" height="12" fill="currentColor" opacity=".22"/>`],
    kernel: [onGpu("kernel"), rect("currentColor")],
    operator: [onGpu("operator"), rect("currentColor")],
    "communication kernel": [onGpu("communication kernel"), rect("currentColor", 0.45)],
    "exposed communication": [onGpu("exposed communication"),
      `${rect("none")}<path d="${lines}${other}" stroke="currentColor"/>`],
    copy: [onGpu("copy"), `<rect y="6" width="20" height="6" fill="currentColor" fill-opacity=".7"/>`],
    "never finished": [scene.lanes.some((lane) => lane.open),
      `<path d="M6 2l8 8M14 2l-8 8" stroke="currentColor" stroke-width="2.2"/>`],
  };
  const key = element("div", { class: "rbr-key", "aria-hidden": "true" });
  for (const [name, [shown, inner]] of Object.entries(signs)) {
    if (!shown) continue;
    const sign = element("span", { html: box(inner) });
    sign.append(name);  // a learner may have named a piece: as text
    key.append(sign);
  }
  return key;
}

/** All elements of a player, by name. */
function makePage(scene) {
  const page = {
    root: element("div", { class: "rbr-player", role: "figure", "aria-label": `Player: ${scene.words}` }),
    // Not an image, whose parts nobody would be told of; its keys go to it, not to the reader.
    stage: element("div", { class: "rbr-stage", tabindex: "0", role: "application",
                            "aria-roledescription": "timeline", "aria-label": TIMELINE }),
    canvas: element("canvas", { "aria-hidden": "true" }),
    event: element("button", { class: "rbr-event", type: "button" }),
    tip: element("div", { class: "rbr-tip", role: "tooltip", hidden: "" }),
    pan: element("div", { class: "rbr-pan", hidden: "", "aria-hidden": "true" }, element("i")),
    play: button("play", "Play (Space)"),
    previous: button("previous", "Previous call (P)"),
    next: button("next", "Next call (N)"),
    slider: element("input", { type: "range", min: "0", max: "1000", step: "any",
                               "aria-label": "Moment of the run" }),
    time: element("span", { class: "rbr-time" }),
    speed: element("select", { "aria-label": "Speed", title: `Speed: at 1 × all of it takes ${PLAY_S} s` }),
    out: button("out", "Zoom out (-)"),
    in: button("in", "Zoom in (+)"),
    all: button("all", "Show all (0)"),
    now: element("div", { class: "rbr-now" }),
    spoken: element("div", { class: "rbr-hidden", "aria-live": "polite" }),
  };
  page.time.style.width = `${momentText(scene, scene.end).length}ch`;
  for (const speed of SPEEDS) {
    page.speed.append(element("option", { value: speed, ...(speed === 1 && { selected: "" }) }, `${speed} ×`));
  }
  const keys = KEYS.map(([key, does]) => `<kbd>${key}</kbd> ${does}${does ? " · " : ""}`).join("");
  const foot = element("div", { class: "rbr-foot" }, page.now);
  for (const note of scene.notes) foot.append(element("div", { class: "rbr-note" }, note));
  foot.append(element("details", {}, element("summary", {}, "Keys"),
    element("div", { html: `${keys}Ctrl and wheel zoom, a drag scrubs` })));
  page.stage.append(page.canvas, page.event, page.tip);
  page.root.append(
    element("div", { class: "rbr-head" }, element("span", { class: "rbr-title" }, scene.title), legendOf(scene)),
    page.stage, page.pan,
    element("div", { class: "rbr-bar" }, page.play, page.previous, page.next, page.slider, page.time,
            page.speed, page.out, page.in, page.all),
    foot, page.spoken,
  );
  // JupyterLab's shortcuts would take the keys first: "a" there adds a cell. It looks for this mark
  // on the element with the focus before it looks for a shortcut.
  for (const each of page.root.querySelectorAll("button, input, select, summary, [tabindex]")) {
    each.setAttribute("data-lm-suppress-shortcuts", "true");
  }
  return page;
}

/** Fill the text beside an event and put it near a point of the stage, inside it. */
function showTip(page, scene, theme, event, x, y) {
  const told = tellEvent(scene, event);
  const swatch = element("i");
  swatch.style.background = theme.ranks[event.row].fill;
  page.tip.replaceChildren(element("b", {}, swatch, told.head));
  if (told.size) page.tip.append(element("div", { class: "rbr-size" }, told.size));
  page.tip.append(element("div", {}, told.time), element("div", {}, told.place));
  if (told.code) page.tip.append(element("code", {}, told.code));
  page.tip.hidden = false;
  const { clientWidth, clientHeight } = page.stage;
  const { offsetWidth, offsetHeight } = page.tip;
  const below = y + 16 + offsetHeight <= clientHeight || y < offsetHeight + 16;
  page.tip.style.left = `${clamp(x + 12, 4, clientWidth - offsetWidth - 4)}px`;
  page.tip.style.top = `${below ? y + 16 : y - offsetHeight - 12}px`;
}

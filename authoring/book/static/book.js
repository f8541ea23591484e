// Runs and labs in the pages of the book: the theme, how high a frame is, sliders over pictures.

const isDark = () => document.documentElement.dataset.theme === "dark";

/** Runs follow the theme by their address's end, and tell how high they are. */
function frameRuns() {
  const frames = [...document.querySelectorAll(".rbr-run iframe")];
  const dress = () => {
    for (const frame of frames) frame.src = `${frame.dataset.src}#${isDark() ? "dark" : "light"}`;
  };
  window.addEventListener("message", ({ data, source }) => {
    const frame = frames.find((one) => one.contentWindow === source);
    if (frame && data?.rbrHeight > 0) frame.height = Math.ceil(data.rbrHeight);
  });
  return dress;
}

/** One strip of a lab: a slider over the positions of one control. */
function stripOf(strip, index, show) {
  const row = document.createElement("label");
  const [name, slider, told] = ["span", "input", "output"].map((tag) => document.createElement(tag));
  name.textContent = strip.name;
  Object.assign(slider, { type: "range", min: 0, max: strip.positions.length - 1, value: strip.start });
  const tell = () => {
    told.textContent = strip.positions[slider.value];
    slider.setAttribute("aria-valuetext", told.textContent);
  };
  slider.oninput = () => {
    tell();
    show(index, Number(slider.value));
  };
  row.append(name, slider, told);
  tell();
  return { row, back: () => { slider.value = strip.start; tell(); } };
}

/** A lab: whichever slider moves, the others go back to where they stood. */
function lab(element) {
  const strips = JSON.parse(element.dataset.strips), image = element.querySelector("img");
  let shown = { index: 0, place: strips[0].start };
  const look = () => {
    const { index, place } = shown;
    image.src = strips[index][isDark() ? "dark" : "light"][place];
    image.alt = `${strips[index].name}: ${strips[index].positions[place]}`;
  };
  const rows = strips.map((strip, index) => stripOf(strip, index, (moved, place) => {
    shown = { index: moved, place };
    rows.forEach((row, other) => other !== moved && row.back());
    look();
  }));
  const note = document.createElement("p");
  note.textContent = "These pictures are stored in the page, so here you move one slider at a time. "
    + "In JupyterLab all sliders move together.";
  element.prepend(...rows.map(({ row }) => row), note);
  rows.forEach(({ row }, index) => row.addEventListener("pointerenter", () => {
    for (const src of strips[index][isDark() ? "dark" : "light"]) new Image().src = src;
  }, { once: true }));  // so that pictures from a server do not lag behind the slider
  return look;
}

/** The theme's script listens to the first of two buttons only, and shows the second. */
function mendToggles() {
  for (const kind of [".primary-toggle", ".secondary-toggle"]) {
    const [first, ...others] = document.querySelectorAll(kind);
    for (const other of others) other.addEventListener("click", () => first.click());
  }
}

document.addEventListener("DOMContentLoaded", () => {
  mendToggles();
  const followers = [frameRuns(), ...[...document.querySelectorAll(".rbr-lab")].map(lab)];
  const follow = () => followers.forEach((one) => one());
  new MutationObserver(follow).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  follow();
});

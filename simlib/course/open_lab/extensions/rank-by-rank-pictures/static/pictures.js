// Pictures follow JupyterLab's theme: a PNG that holds its dark variant (simlib/core/draw/dark.py) shows it
// where the theme is dark. And they get the alt text that stands in their output's metadata
// (simlib/core/draw/display.py). JupyterLab loads this file as it is; there is no build step.

const SIGNATURE = 8, FRAME = 12;  // bytes: of a PNG, and around the data of each of its chunks

/** The dark variant of a PNG's bytes, a PNG of its own; null where it has none. */
function darkTwin(bytes) {
  const view = new DataView(bytes.buffer);
  let palette = 0, twin = null;
  for (let at = SIGNATURE; at + FRAME <= bytes.length; at += FRAME + view.getUint32(at)) {
    const name = String.fromCharCode(...bytes.subarray(at + 4, at + 8));
    if (name === "PLTE") palette = at;
    if (name === "daRK") twin = bytes.slice(at + 8, at + 8 + view.getUint32(at));
  }
  if (!twin || twin[0] === 0x89) return twin;  // none, or a whole PNG
  const dark = bytes.slice();
  dark.set(twin, palette);  // another palette, of the same length
  return dark;
}

const PNG = "data:image/png;base64,";

/** The address of a picture's dark variant; its own where it has none. */
function darkAddress(address) {
  if (!address.startsWith(PNG)) return address;
  const bytes = Uint8Array.from(atob(address.slice(PNG.length)), (letter) => letter.charCodeAt(0));
  const dark = darkTwin(bytes);
  return dark ? PNG + btoa(Array.from(dark, (byte) => String.fromCharCode(byte)).join("")) : address;
}

const addresses = new WeakMap();  // of an image on the page: {light, dark}

/** Let an image show what suits the theme; what it shows now may be new. */
function follow(image) {
  const isDark = document.body.dataset.jpThemeLight === "false";
  let known = addresses.get(image);
  if (!known || (image.src !== known.light && image.src !== known.dark)) {
    if (!isDark) return;
    known = { light: image.src, dark: darkAddress(image.src) };
    addresses.set(image, known);
  }
  const wanted = isDark ? known.dark : known.light;
  if (image.src !== wanted) image.src = wanted;
}

/** Follow what has come onto the page, or changed: before it is painted. */
function followAll(changes) {
  for (const { type, target, addedNodes } of changes) {
    if (target === document.body && type === "attributes") return document.querySelectorAll("img").forEach(follow);
    if (target.tagName === "IMG") follow(target);
    for (const node of addedNodes) {
      if (node.tagName === "IMG") follow(node);
      node.querySelectorAll?.("img").forEach(follow);
    }
  }
}

/** Let whatever shows PNGs say what is on them: JupyterLab's own way leaves `alt` out. */
function tellPictures(rendermime) {
  const factory = rendermime.getFactory("image/png");
  const create = factory.createRenderer;
  factory.createRenderer = (options) => {
    const shown = create(options), render = shown.renderModel;
    shown.renderModel = async (model) => {
      await render.call(shown, model);
      const image = shown.node.querySelector("img"), alt = model.metadata["image/png"]?.alt;
      if (image && alt) image.alt = alt;
    };
    return shown;
  };
}

const plugin = (rendermime) => ({
  id: "rank-by-rank-pictures:plugin",
  autoStart: true,
  requires: [rendermime.IRenderMimeRegistry],
  activate(app, registry) {
    tellPictures(registry);
    new MutationObserver(followAll).observe(document.body, {
      subtree: true, childList: true, attributes: true, attributeFilter: ["src", "data-jp-theme-light"],
    });
    document.querySelectorAll("img").forEach(follow);
  },
});

// What JupyterLab's loader asks of a container of extensions; `shared` are its own modules.
let shared;
(window._JUPYTERLAB ??= {})["rank-by-rank-pictures"] = {
  init(scope) {
    shared = scope;
  },
  async get() {
    const [rendermime] = Object.values(shared["@jupyterlab/rendermime"]);
    const load = await rendermime.get();
    return () => ({ __esModule: true, default: plugin(load()) });
  },
};

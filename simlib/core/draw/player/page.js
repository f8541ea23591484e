// A page that holds runs: its scenes, players that go together, the theme.

/** The data again as they were, of columns: see page.py. */
function unpacked(value) {
  if (Array.isArray(value)) return value.map(unpacked);
  if (value === null || typeof value !== "object") return value;
  if (!value.columns) return mapped(value, unpacked);
  const columns = mapped(value.columns, (column) =>
    column.words ? column.at.map((index) => column.words[index]) : unpacked(column));
  return Array.from({ length: value.length }, (_, row) => mapped(columns, (column) => column[row]));
}

const mapped = (object, make) =>
  Object.fromEntries(Object.entries(object).map(([name, value]) => [name, make(value)]));

/** What one of several players shows, all show. */
function together(players) {
  let leads = false;
  const follow = (leader) => {
    if (leads) return;
    leads = true;
    for (const player of players.filter((one) => one !== leader)) {
      if (leader.playing) player.halt();
      if (player.setView(leader.view.begin, leader.span)) player.redraw();
      player.seek(leader.t);
    }
    leads = false;
  };
  for (const player of players) player.moved = () => follow(player);
}

/** The theme of the address (#dark, #light), of the button, or of the system. */
function wearTheme() {
  const root = document.documentElement, button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  const look = () => {
    const named = ["dark", "light"].find((name) => location.hash === `#${name}`);
    root.dataset.theme = chosen ?? named ?? (system.matches ? "dark" : "light");
    button.textContent = root.dataset.theme === "dark" ? "Light" : "Dark";
  };
  button.onclick = () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    look();
  };
  system.onchange = look;
  window.onhashchange = look;
  root.classList.toggle("framed", window.top !== window);
  look();
}

/** Within another page: tell it how high this one is, now and whenever that changes. */
function tellHeight() {
  if (window.top === window) return;
  const root = document.documentElement;
  const tell = () => parent.postMessage({ rbrHeight: root.getBoundingClientRect().height }, "*");
  new ResizeObserver(tell).observe(document.body);
}

wearTheme();
tellHeight();
const scenes = unpacked(JSON.parse(document.getElementById("scenes").textContent));
const players = scenes.map((scene, index) => new Player(scene, document.getElementById(`run-${index}`)));
together(players);

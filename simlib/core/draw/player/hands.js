// What mouse and keyboard do to a player.

function listen(player) {
  const { page } = player;
  page.play.onclick = () => player.toggle();
  page.previous.onclick = () => player.leap(-1);
  page.next.onclick = () => player.leap(1);
  page.in.onclick = () => player.zoom(2);
  page.out.onclick = () => player.zoom(0.5);
  page.all.onclick = () => player.zoom(1e-9);
  page.speed.onchange = () => (player.speed = Number(page.speed.value));
  page.slider.oninput = () => {
    player.halt();
    player.seek(player.scene.begin + (page.slider.value / 1000) * player.whole);
  };
  page.slider.onchange = () => player.seek(player.t, true);
  page.root.addEventListener("keydown", (press) => onKey(player, press));
  page.event.onfocus = () => player.pointAtCursor();
  page.event.onblur = () => player.point(null);
  page.event.onclick = () => player.seek(player.scene.events[player.cursor].post, true);
  listenToMouse(player);
  // Its size becomes another one when it is shown, too: a theme that came before it could not see.
  player.sizes = new ResizeObserver(() => player.refit());
  player.sizes.observe(page.stage);
  followTheme(player);
}

/** Draw anew where the page's colours have changed. No page says so: here are the signs of it. */
function followTheme(player) {
  const { root } = player.page;
  // The background begins to change, which it does only while it is shown.
  root.addEventListener("transitionrun", (change) => {
    if (change.target === root) player.refit();
  });
  // <html> or <body> is marked with another theme, or a style sheet has come or gone.
  const look = () => requestAnimationFrame(() => player.recolour());
  player.themes = new MutationObserver(look);
  player.themes.observe(document.head, { childList: true });
  for (const marked of [document.documentElement, document.body]) {
    player.themes.observe(marked, { attributes: true });
  }
}

function listenToMouse(player) {
  const { stage, pan } = player.page;
  const time = (mouse) => player.layout.t(mouse.clientX - stage.getBoundingClientRect().left);
  drag(stage, (mouse) => {
    player.halt();
    player.seek(clamp(time(mouse), player.view.begin, player.view.end));
  });
  drag(pan, (mouse) => {
    const box = pan.getBoundingClientRect();
    const share = (mouse.clientX - box.left) / box.width;
    if (player.setView(player.scene.begin + share * player.whole - player.span / 2, player.span)) player.redraw();
  });
  stage.addEventListener("pointermove", (mouse) => {
    const box = stage.getBoundingClientRect();
    const [x, y] = [mouse.clientX - box.left, mouse.clientY - box.top];
    const row = x < player.layout.left ? -1 : player.layout.row(y);
    player.point(eventAt(player.scene, row, player.layout.t(x), 5 / player.layout.perSecond), x, y);
  });
  stage.addEventListener("pointerleave", () => player.point(null));
  stage.addEventListener("wheel", (wheel) => {
    if (wheel.ctrlKey || wheel.metaKey) player.zoom(Math.exp(-wheel.deltaY * 0.004), time(wheel));
    else if (wheel.shiftKey || Math.abs(wheel.deltaX) > Math.abs(wheel.deltaY)) {
      player.shift((wheel.deltaX || wheel.deltaY) / player.layout.width);
    } else return;
    wheel.preventDefault();
  }, { passive: false });
}

/** Call `move` while the pointer is down on an element, and once when it goes down. */
function drag(target, move) {
  target.addEventListener("pointerdown", (mouse) => {
    if (mouse.button !== 0) return;
    target.setPointerCapture(mouse.pointerId);
    move(mouse);
  });
  target.addEventListener("pointermove", (mouse) => {
    if (target.hasPointerCapture(mouse.pointerId)) move(mouse);
  });
}

function onKey(player, press) {
  const own = press.target === player.page.event;
  if (press.ctrlKey || press.metaKey || press.altKey || press.target.matches("select")) return;
  if (own && /^(Arrow|Home|End)/.test(press.key)) player.walk(press.key);
  else if (press.key === " " && press.target.matches("button, summary")) return;
  else if (!act(player, press.key, press.shiftKey ? 10 : 1)) return;
  press.preventDefault();
  press.stopPropagation();
}

/** Do what a key means; returns whether it means anything. */
function act(player, key, times) {
  const step = (way) => {
    player.halt();
    player.seek(player.t + way * times * player.span / 100, true);
  };
  const go = (t) => {
    player.halt();
    player.seek(t, true);
  };
  const does = {
    " ": () => player.toggle(),
    ArrowLeft: () => step(-1), ArrowRight: () => step(1),
    Home: () => go(player.scene.begin), End: () => go(player.scene.end),
    p: () => player.leap(-1), n: () => player.leap(1),
    "+": () => player.zoom(2), "=": () => player.zoom(2), "-": () => player.zoom(0.5),
    0: () => player.zoom(1e-9), "[": () => player.shift(-0.25), "]": () => player.shift(0.25),
    Escape: () => player.point(null),
  }[key.length === 1 ? key.toLowerCase() : key];
  does?.();
  return Boolean(does);
}

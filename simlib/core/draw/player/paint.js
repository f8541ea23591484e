// One frame over the drawn scene: the moment, what is under way at it, the frame around.

/** One frame: the past in full colour, the future pale, what flies, what each rank does. */
function paint(player) {
  if (!player.layout) return;
  const { layout, theme, ratio, back } = player;
  const context = player.page.canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = theme.paper;
  context.fillRect(0, 0, layout.width, layout.height);
  const x = clamp(layout.x(player.t), layout.left, layout.right);
  const cut = Math.round(x * ratio), h = back.height;
  if (cut > 0) context.drawImage(back, 0, 0, cut, h, 0, 0, cut / ratio, layout.height);
  context.globalAlpha = 0.35;
  const rest = back.width - cut;
  if (rest > 0) context.drawImage(back, cut, 0, rest, h, cut / ratio, 0, rest / ratio, layout.height);
  context.globalAlpha = 1;
  paintMoving(player, context);
  paintFocus(player, context);
  paintFrame(player, context);
}

/** Collectives under way, messages in flight, the line of the moment. */
function paintMoving(player, context) {
  const { scene, layout, theme, t } = player;
  context.save();
  context.beginPath();
  context.rect(layout.left - 6, 0, layout.right - layout.left + 12, layout.bottom + 4);
  context.clip();
  const within = t >= player.view.begin && t <= player.view.end;
  if (within) {
    context.fillStyle = theme.ink;
    context.fillRect(layout.x(t) - 0.75, TOP - 4, 1.5, layout.bottom - TOP + 8);
  }
  context.save();
  context.beginPath();
  context.rect(0, 0, layout.x(t), layout.bottom);  // what is to come stays pale
  context.clip();
  context.strokeStyle = theme.ink;
  context.lineWidth = 1.4;
  if (t < scene.end) {
    for (const band of scene.bands) {
      const [start, end] = bandSpan(scene, band);
      if (t < start || t >= end || band.events.length < 2) continue;
      bandPath(context, scene, layout, band);
      context.stroke();
    }
  }
  const flying = [];
  const linger = player.playing && !player.quiet.matches ? LINGER_S * player.rate : 0;
  for (const arrow of scene.arrows) {
    const share = shareOfWay(scene, arrow, t, linger);
    if (share === null) continue;
    strokeArrow(context, scene, layout, theme, arrow, true);
    flying.push([arrow, share]);
  }
  context.restore();
  for (const [arrow, share] of flying) paintMessage(player, context, arrow, share);
  context.restore();
}

/** How much of its way a message has made at t, or null; it is seen for `linger` at the least. */
function shareOfWay(scene, arrow, t, linger) {
  if (t < arrow.start) return null;
  if (arrow.end === null) return t < scene.end ? 1 : null;
  const shown = Math.max(arrow.end - arrow.start, linger);
  return t < arrow.start + shown ? (t - arrow.start) / shown : null;
}

/** A message as a dot on its way. */
function paintMessage(player, context, arrow, share) {
  const { scene, layout, theme } = player;
  const [x0, y0, x1, y1] = arrowEnds(scene, layout, arrow);
  const radius = clamp(layout.base * 0.1, 3, 6.5);
  const [x, y] = [x0 + (x1 - x0) * share, y0 + (y1 - y0) * share];
  dot(context, x, y, radius, theme.ranks[arrow.src].fill, theme.ink);
}

function paintFocus(player, context) {
  if (player.focus === null) return;
  const box = boxOf(player, player.focus);
  context.strokeStyle = player.theme.ink;
  context.lineWidth = 2.2;
  context.strokeRect(box.x - 2, box.y - 2, box.width + 4, box.height + 4);
}

/** Names of the ranks, what each does now, the axis. */
function paintFrame(player, context) {
  const { scene, layout, theme } = player;
  const size = clamp(layout.base * 0.8, 9, 13);
  const both = layout.base >= 34;
  context.textBaseline = "middle";
  scene.lanes.forEach((lane, row) => {
    const y = layout.y(row);
    context.fillStyle = theme.ranks[row].fill;
    const side = clamp(layout.base * 0.3, 4, 11);
    context.fillRect(12 - side / 2, (both ? y - 8 : y) - side / 2, side, side);
    context.textAlign = "left";
    context.fillStyle = theme.ink;
    context.font = `600 ${size}px ${theme.font}`;
    context.fillText(`rank ${lane.rank}`, 23, both ? y - 8 : y);
    context.font = `10px ${theme.font}`;
    context.fillStyle = theme.grey;
    streamsOf(lane).forEach(([name], index) => context.fillText(name, 23, layout.strip(row, index)));
    if (!both) return;
    const state = stateAt(lane, player.t);
    context.fillStyle = theme.grey;
    context.font = `11px ${theme.font}`;
    const piece = state === "computing" && pieceAt(lane, player.t);
    const room = layout.left - 23 - 6;  // beside the bars
    const doing = fitted(context, state === "before" ? "" : piece || state, 1.25 * room);
    context.fillText(doing, 23, y + 8, room);  // which sets it closer where there is too much
  });
  context.font = `11px ${theme.font}`;
  context.fillStyle = theme.grey;
  context.textAlign = "left";
  context.fillText(`${scene.clock.replace("virtual time", "virtual")} (${scene.unit})`, 6, layout.bottom + 13);
  context.textAlign = "center";
  for (const [t, text] of ticksOf(scene, layout, player.view)) {
    const x = layout.x(t);
    context.fillRect(x, layout.bottom, 1, 4);
    const room = context.measureText(text).width / 2;
    context.fillText(text, Math.min(x, layout.width - room - 3), layout.bottom + 13);
  }
  context.fillRect(layout.left, layout.bottom, layout.right - layout.left, 1);
}

/** A text, or its beginning and three dots. */
function fitted(context, text, room) {
  let shown = text;
  for (let n = text.length; n && context.measureText(shown).width > room; n--) {
    shown = `${text.slice(0, n - 1)}\u2026`;
  }
  return shown;
}

/** The rectangle of an event, in pixels, inside the visible part. */
function boxOf(player, index) {
  const { scene, layout } = player;
  const event = scene.events[index];
  const x = clamp(layout.x(event.post), layout.left, layout.right);
  const right = clamp(layout.x(endOf(scene, event)), x, layout.right);
  const y = layout.y(event.row) - layout.half;
  return { x, y, width: Math.max(3, right - x), height: 2 * layout.half };
}

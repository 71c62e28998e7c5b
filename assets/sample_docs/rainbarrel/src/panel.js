// Draws the level of the rain barrel on the small display in the shed

const WIDTH = 128;
const HEIGHT = 64;
const CAPACITY_LITRES = 310;

/** The number of pixels that stand for `litres`, never more than the display is high. */
export function barHeight(litres) {
  const share = Math.min(1, Math.max(0, litres / CAPACITY_LITRES));
  return Math.round(share * HEIGHT);
}

/** A warning blinks when fewer than 60 litres are left. */
export function warning(litres, tick) {
  return litres < 60 && tick % 2 === 0 ? "LOW WATER" : "";
}

export function draw(context, litres, tick) {
  const height = barHeight(litres);
  context.clearRect(0, 0, WIDTH, HEIGHT);
  context.fillRect(0, HEIGHT - height, 40, height);
  context.fillText(`${Math.round(litres)} l`, 48, 20);
  context.fillText(warning(litres, tick), 48, 44);
}

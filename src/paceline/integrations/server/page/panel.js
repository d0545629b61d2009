// The figures of one answer: speed, sources, rounds.

import { element, legend, look } from "./tokens.js";

const MOST_BARS = 40;
const HIGHEST = 60; // pixels of a bar
const by = (id) => document.getElementById(id);

export const number = (value, digits) => (value === null || value === undefined ? "–" : value.toFixed(digits));

/** Draws at most once a frame: chunks may come faster than a page can be laid out, and would starve the keyboard. */
export function eachFrame(draw) {
  let asked = 0;
  const drop = () => {
    cancelAnimationFrame(asked);
    asked = 0;
  };
  const drawn = () => {
    drop();
    draw();
  };
  return { soon: () => (asked ||= requestAnimationFrame(drawn)), now: drawn, drop };
}

/** Facts of an answer in one line. */
export function facts(answer) {
  const found = answer.figures();
  const parts = [[found.tokens, found.tokens === 1 ? "token" : "tokens"]];
  if (found.speed) parts.push([number(found.speed, 1), "per second"]);
  if (found.each) parts.push([number(found.each, 2), "per round"]);
  return parts;
}

export function showFigures(answer) {
  const found = answer.figures();
  by("f-speed").textContent = number(found.speed, 1);
  by("f-each").textContent = number(found.each, 2);
  by("f-first").textContent = number(found.first, 2);
  by("f-tokens").textContent = String(found.tokens);
  by("f-rounds").textContent = String(found.rounds);
  by("f-drafted").textContent = number(found.drafted, 0);
  const rate = found.drafted ? ` (${Math.round((100 * found.accepted) / found.drafted)} %)` : "";
  by("f-accepted").textContent = `${found.accepted}${rate}`;
  by("brief").textContent = found.speed
    ? `${number(found.speed, 1)} tokens/s · ${number(found.each, 2)} per round`
    : "Figures";
  legend(by("legend"), answer);
  share(answer);
  strip(answer);
}

/** Each source's part of the tokens, side by side. */
function share(answer) {
  const parts = [...answer.counts].sort(([a, n], [b, m]) => !a - !b || m - n);
  const made = parts.map(([source, count]) => {
    const part = element("span", source ? look(source) : "own-share");
    part.style.flexGrow = String(count);
    return part;
  });
  by("share").replaceChildren(...made);
}

/** A bar for each of the last rounds, as high as the round has tokens. Bars that stand already are left alone. */
function strip(answer) {
  const target = by("strip");
  const shown = answer.rounds.slice(-MOST_BARS);
  const most = Math.max(1, ...shown.map((round) => round.sources.length));
  target.style.setProperty("--most", String(most));
  target.style.setProperty("--unit", `${Math.min(6, HIGHEST / most)}px`);
  const fresh = target.answer !== answer || shown[0]?.round !== target.from;
  if (fresh) target.replaceChildren();
  [target.answer, target.from] = [answer, shown[0]?.round];
  target.lastChild?.remove();
  for (const round of shown.slice(target.children.length)) {
    const bar = element("span", "bar");
    bar.append(...round.sources.map((source) => element("span", source ? look(source) : "own-share")));
    target.append(bar);
  }
  by("rounds-title").hidden = target.hidden = !shown.length;
}

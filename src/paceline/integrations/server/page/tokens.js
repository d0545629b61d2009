// Answers as elements: coloured tokens, the legend, the tooltip. Text enters the page as text nodes only.

const COLORS = 5;
const TIP_TEXT = 40;
export const WHY_OWN = {
  untold: "the model itself",
  corrected: "corrected: the model refused a draft",
  bonus: "bonus: after a whole draft was accepted",
  plain: "plain: no draft in that round",
};

const numbers = new Map(); // source -> its colour, the same one in all texts of the page

export function colorOf(source) {
  if (!numbers.has(source)) numbers.set(source, (numbers.size % COLORS) + 1);
  return numbers.get(source);
}

export function look(source, kind) {
  if (source) return `s${colorOf(source)}`;
  return kind in WHY_OWN && kind !== "untold" ? kind : "own";
}

export function element(name, classes = "", text = "") {
  const made = document.createElement(name);
  if (classes) made.className = classes;
  if (text) made.textContent = text;
  return made;
}

/** Control characters, and characters that reverse the direction of writing, as signs. */
export function visible(text) {
  return text
    .replace(/[\u0080-\u009f\u202a-\u202e\u2066-\u2069\ud800-\udfff]/gu, "\ufffd")
    .replace(/[\u0000-\u0008\u000b-\u001f]/g, (sign) => String.fromCharCode(0x2400 + sign.charCodeAt(0)))
    .replace(/\u007f/g, "\u2421");
}

function fill(target, text) {
  const lines = visible(text).split("\n");
  target.replaceChildren();
  lines.forEach((line, place) => {
    if (place) target.append(element("i", "nl", "\n"));
    if (line) target.append(line);
  });
}

/** Draws the cells of one part of an answer as they come. Only the last drawn cell may still grow. */
export class TokenView {
  constructor(target, part) {
    this.target = target;
    this.part = part;
    this.spans = [];
    this.cells = [];
    target.classList.add("text");
    target.dir = "auto";
    target.tabIndex = 0;
    target.setAttribute("role", "group");
    views.set(target, this);
  }

  sync(answer) {
    this.answer = answer;
    this.cells = answer.cells.filter((cell) => cell.part === this.part);
    const from = Math.max(0, this.spans.length - 1);
    for (let place = from; place < this.cells.length; place += 1) this.#draw(place);
    return this.cells.length > 0;
  }

  #draw(place) {
    const cell = this.cells[place];
    const made = this.spans[place];
    const span = made ?? element("span");
    if (made?.length === cell.text.length && made.count === cell.tokens.length) return;
    const last = cell.tokens.at(-1);
    const before = this.cells[place - 1]?.tokens.at(-1)?.round;
    const begins = last && cell.tokens[0].round !== before ? this.#bar(cell.tokens[0].round, before) : "";
    span.className = `t ${look(last?.source, last?.kind)}${begins}${cell.text ? "" : " end"} fresh`;
    span.length = cell.text.length;
    span.count = cell.tokens.length;
    this.#mix(span, cell);
    fill(span, cell.text);
    if (!made) {
      this.spans.push(span);
      this.target.append(span);
    }
  }

  /** The bar before a round; it is stronger where the round, or the one before, has several tokens. */
  #bar(...rounds) {
    const size = (number) => this.answer.rounds.findLast((round) => round.round === number)?.sources.length ?? 0;
    return rounds.some((round) => size(round) > 1) ? " begin many" : " begin";
  }

  /** A cell that several sources share shows the colour of each. */
  #mix(span, cell) {
    const sources = [...new Set(cell.tokens.map((one) => one.source))];
    if (sources.length < 2) return;
    const share = 100 / sources.length;
    const stops = sources.map((source, place) => {
      const color = source ? `var(--s${colorOf(source)})` : "transparent";
      return `${color} ${share * place}% ${share * (place + 1)}%`;
    });
    span.style.background = `linear-gradient(90deg,${stops.join(",")})`;
  }
}

/** The tokens of a legend: look, name, count; drafters first, the most useful first. */
export function legend(target, answer) {
  const drafted = [...answer.counts].filter(([source]) => source).sort((a, b) => b[1] - a[1]);
  const own = Object.keys(WHY_OWN).filter((kind) => answer.own.has(kind));
  const rows = [
    ...drafted.map(([source, count]) => [look(source), `accepted from ${source}`, count]),
    ...own.map((kind) => [look("", kind), WHY_OWN[kind], answer.own.get(kind)]),
  ];
  const items = rows.map(([classes, name, count]) => {
    const item = element("li");
    const percent = Math.round((100 * count) / answer.tokens);
    const share = element("small", "", `${percent || "<1"} %`);
    item.append(element("span", `t ${classes}`, name), element("b", "", String(count)), share);
    return item;
  });
  target.replaceChildren(...items);
}

// --- the tooltip: pointing at a token, or walking with the arrow keys, shows what is known of it ---

const views = new WeakMap();
const tip = document.getElementById("tip");
let marked = null;

function about(cell, answer) {
  const lines = cell.tokens.map((one) => {
    const line = element("p");
    const shown = one.text.length > TIP_TEXT ? `${one.text.slice(0, TIP_TEXT)}…` : one.text;
    const whose = one.source ? `accepted from ${one.source}` : (WHY_OWN[one.kind] ?? WHY_OWN.untold);
    const size = answer.rounds.find((round) => round.round === one.round)?.sources.length ?? 1;
    const round = one.round === answer.promptRound ? "with the prompt" : `round ${one.round + (answer.promptRound === 0 ? 0 : 1)}`;
    line.append(element("b", `t ${look(one.source, one.kind)}`, whose));
    const many = size > 1 ? ` of ${size} tokens` : "";
    line.append(` ${round}${many} · token ${one.token} · ${shown ? visible(JSON.stringify(shown)) : "no text by itself"}`);
    return line;
  });
  return lines.length ? lines : [element("p", "", "The server did not say which tokens these are.")];
}

function show(span) {
  const view = views.get(span.parentElement);
  const cell = view?.cells[view.spans.indexOf(span)];
  if (!cell) return hide();
  marked?.classList.remove("at");
  marked = span;
  span.classList.add("at");
  tip.replaceChildren(...about(cell, view.answer));
  tip.hidden = false;
  const box = span.getClientRects()[0] ?? span.getBoundingClientRect();
  const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = `${Math.max(8, Math.min(box.left, room))}px`;
  const above = box.top - tip.offsetHeight - 8;
  tip.style.top = `${above > 4 ? above : box.bottom + 8}px`;
}

export function hide() {
  marked?.classList.remove("at");
  marked = null;
  tip.hidden = true;
}

function walk(event) {
  const view = views.get(event.target);
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };
  if (!view?.spans.length || !(event.key in steps)) return;
  event.preventDefault();
  const here = view.spans.indexOf(marked);
  const next = here < 0 ? (steps[event.key] < 0 ? view.spans.length - 1 : 0) : here + steps[event.key];
  const span = view.spans[Math.max(0, Math.min(view.spans.length - 1, next))];
  span.scrollIntoView({ block: "nearest" });
  show(span);
  document.getElementById("said").textContent = tip.textContent;
}

export function watch() {
  const token = (event) => event.target.closest?.(".text > .t");
  document.addEventListener("pointerover", (event) => (token(event) ? show(token(event)) : hide()));
  document.addEventListener("click", (event) => token(event) && show(token(event)));
  document.addEventListener("keydown", walk);
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", hide, { capture: true, passive: true });
}

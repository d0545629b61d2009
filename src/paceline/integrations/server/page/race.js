// A race: one prompt and one seed, with the chosen method and with plain decoding.

import { Answer } from "./answer.js";
import { chunks } from "./stream.js";
import { TokenView, element } from "./tokens.js";
import { eachFrame, number } from "./panel.js";

const by = (id) => document.getElementById(id);

/** One side of the race. */
class Lane {
  constructor(id, title, seen) {
    this.target = by(id);
    this.state = element("span", "state", "waiting");
    this.facts = element("p", "lane-facts");
    this.meter = element("div", "meter");
    this.fill = this.meter.appendChild(element("span"));
    this.text = element("div");
    this.text.setAttribute("aria-label", `Tokens of the text: ${title}`);
    const head = element("header");
    head.append(element("h2", "", title), this.state);
    this.target.replaceChildren(head, this.meter, this.facts, this.text);
    this.answer = new Answer(title);
    this.view = new TokenView(this.text, "content");
    this.thoughts = null;
    this.target.onpointerdown = this.text.onfocus = () => seen(this.answer);
  }

  async run(request, key, signal, seen) {
    this.answer.asked = performance.now();
    this.#say("writing");
    const frame = eachFrame(() => {
      this.draw();
      seen(this.answer);
    });
    try {
      for await (const chunk of chunks(request, key, signal)) {
        this.answer.take(chunk);
        frame.soon();
      }
      this.answer.close("done");
    } catch (error) {
      this.answer.close("failed");
      this.#say(error.name === "AbortError" ? "stopped" : "failed");
      throw error;
    } finally {
      frame.now();
    }
    this.#say("done");
  }

  #say(state) {
    this.state.textContent = this.target.dataset.state = state;
  }

  draw() {
    if (!this.thoughts && this.answer.text("reasoning")) {
      this.thoughts = new TokenView(element("div", "thoughts"), "reasoning");
      this.text.before(this.thoughts.target);
    }
    this.thoughts?.sync(this.answer);
    this.view.sync(this.answer);
    const found = this.answer.figures();
    const facts = [
      [number(found.speed, 1), "tokens/s"],
      [number(found.each, 2), "per round"],
      [String(found.tokens), "tokens"],
      [number(found.seconds, 2), "seconds"],
    ];
    this.facts.replaceChildren(
      ...facts.map(([value, unit]) => {
        const fact = element("span", "", ` ${unit}`);
        fact.prepend(element("b", "", value));
        return fact;
      }),
    );
  }
}

/** Run it; both texts and the outcome are shown. Drafts go first: methods that remember texts gain nothing from it. */
export async function race({ request, method, drafts }, together, key, signal, seen) {
  by("verdict").hidden = true;
  const drafted = new Lane("lane-drafted", `With drafts: ${method}`, seen);
  const plain = new Lane("lane-plain", "Plain decoding", seen);
  by("race-about").textContent = together
    ? `Both run together and share the machine. Seed ${request.seed}.`
    : `One after the other, with drafts first: each has the machine to itself. Seed ${request.seed}.`;
  const first = () => drafted.run({ ...request, ...drafts }, key, signal, seen);
  const second = () => plain.run({ ...request, speculative: false }, key, signal, seen);
  try {
    if (together) await both(first(), second());
    else {
      await first();
      await second();
    }
  } catch (error) {
    verdict("The race ended early, so there is nothing to compare.", "none");
    throw error;
  }
  compare(drafted, plain, together);
  seen(drafted.answer);
}

/** Wait for both, also if one fails. */
async function both(...runs) {
  const failed = (await Promise.allSettled(runs)).find((run) => run.status === "rejected");
  if (failed) throw failed.reason;
}

function compare(drafted, plain, together) {
  const [one, other] = [drafted.answer.whole(), plain.answer.whole()];
  const [fast, slow] = [drafted.answer.figures().speed, plain.answer.figures().speed];
  const most = Math.max(fast ?? 0, slow ?? 0);
  for (const [lane, speed] of [[drafted, fast], [plain, slow]]) lane.fill.style.width = most ? `${(100 * (speed ?? 0)) / most}%` : "0";
  const equal = one === other && drafted.answer.finish === plain.answer.finish;
  const same = equal ? "The texts are equal." : `The texts differ${difference(one, other)}.`;
  const how = together ? "run together" : "run one after the other, with drafts first";
  verdict(same, equal ? "equal" : "unequal");
  if (!fast || !slow) return;
  const ratio = element("strong", "", `${(fast / slow).toFixed(2)}×`);
  const none = drafted.answer.figures().accepted ? "" : " No draft was accepted.";
  by("verdict").append(" ", ratio, element("span", "", ` the tokens per second of plain decoding in this race, ${how}.${none}`));
}

function difference(one, other) {
  const [a, b] = [[...one], [...other]];
  let place = 0;
  while (place < a.length && a[place] === b[place]) place += 1;
  return one === other ? " only in why they ended" : ` from character ${place + 1} on`;
}

function verdict(text, outcome) {
  by("verdict").replaceChildren(element("b", "", text));
  by("verdict").dataset.outcome = outcome;
  by("verdict").hidden = false;
}

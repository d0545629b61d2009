// The chat's texts: questions and answers as elements.

import { Answer } from "./answer.js";
import { TokenView, element } from "./tokens.js";
import { facts } from "./panel.js";

const log = document.getElementById("log");
const stage = document.getElementById("stage");
const NEAR_THE_END = 120;

export function drawQuestion(text) {
  const item = element("article", "question");
  item.setAttribute("aria-label", "You");
  item.append(element("div", "bubble", text));
  log.append(item);
  return item;
}

/** An answer on the page, drawn as it comes. */
export class AnswerView {
  constructor(answer, chosen) {
    this.answer = answer;
    this.item = element("article", "answer");
    this.item.setAttribute("aria-label", `Answer of ${answer.name}`);
    this.text = element("div");
    this.text.setAttribute("aria-label", "Tokens of the answer; arrow keys walk through them");
    this.view = new TokenView(this.text, "content");
    this.tools = element("div", "tools");
    this.foot = element("footer");
    this.item.append(this.tools, this.foot);
    this.tools.before(this.text);
    for (const event of ["pointerdown", "focusin"]) this.item.addEventListener(event, () => chosen(this.answer));
    log.append(this.item);
    this.sync();
  }

  sync() {
    const follow = stage.scrollHeight - stage.scrollTop - stage.clientHeight < NEAR_THE_END;
    if (!this.thoughts && this.answer.cells.some((cell) => cell.part === "reasoning")) this.#think();
    this.thoughts?.sync(this.answer);
    const any = this.view.sync(this.answer);
    this.text.hidden = !any && !!(this.thoughts || this.answer.tools.length);
    this.text.classList.toggle("waiting", !any && !this.answer.ended);
    this.tools.replaceChildren(...this.answer.tools.filter(Boolean).map(toolBox));
    if (this.answer.ended) this.#finish();
    if (follow) stage.scrollTop = stage.scrollHeight;
  }

  #think() {
    const box = element("details", "thoughts");
    this.thoughts = new TokenView(element("div"), "reasoning");
    this.thoughts.target.setAttribute("aria-label", "Tokens of the reasoning");
    box.append(element("summary", "", "Reasoning"), this.thoughts.target);
    this.item.prepend(box);
  }

  #finish() {
    const parts = facts(this.answer).map(([value, unit]) => `${value} ${unit}`);
    const ends = { length: "cut at the limit of tokens" };
    const how = { stopped: "stopped", failed: "broke off" }[this.answer.ended] ?? ends[this.answer.finish];
    this.foot.replaceChildren(element("span", "", [...parts, ...(how ? [how] : [])].join(" · ")));
    if (!navigator.clipboard) return;
    const copy = element("button", "quiet small", "Copy");
    copy.type = "button";
    copy.addEventListener("click", async () => {
      await navigator.clipboard.writeText(this.answer.text());
      copy.textContent = "Copied";
    });
    this.foot.append(copy);
  }
}

function toolBox(call) {
  const box = element("section", "tool");
  box.append(element("h3", "", call.name || "tool"), element("pre", "", pretty(call.arguments)));
  return box;
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json; // not complete yet
  }
}

export function drawChat(chat, chosen) {
  log.replaceChildren();
  let last = null;
  for (const message of chat.messages) {
    if (message.role === "user") drawQuestion(message.content);
    else chosen((last = new AnswerView(Answer.restored(message.answer), chosen).answer));
  }
  stage.scrollTop = stage.scrollHeight;
  return last;
}

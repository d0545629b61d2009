// The page: what is chosen, what runs, what is kept.

import { Answer } from "./answer.js";
import { AnswerView, drawChat, drawQuestion } from "./chat.js";
import { eachFrame, number, showFigures } from "./panel.js";
import { race } from "./race.js";
import { bindSettings, drafting, learn, openSettings, raceMethod, randomSeed, requestOf, settingsAreValid } from "./setup.js";
import * as store from "./store.js";
import { chunks, sentence } from "./stream.js";
import { element, hide, watch } from "./tokens.js";

const SAMPLES = ["Once upon a time", "Write a short story about a lighthouse.", "List the planets, with one fact about each."];
const TITLE = 60;
const UNAUTHORIZED = 401;
const by = (id) => document.getElementById(id);
const prompt = by("prompt");

let chat = store.newChat();
let running = null;

const view = () => document.querySelector("input[name=view]:checked").value;

// --- one request at a time ---

async function run(work) {
  running = new AbortController();
  error("");
  document.body.dataset.running = "";
  const focused = document.activeElement === by("send-button");
  by("send-button").hidden = true;
  by("stop-button").hidden = false;
  if (focused) by("stop-button").focus();
  try {
    await work(running.signal);
  } finally {
    const stopped = document.activeElement === by("stop-button");
    running = null;
    delete document.body.dataset.running;
    by("send-button").hidden = false;
    by("stop-button").hidden = true;
    if (stopped) prompt.focus();
  }
}

function error(text) {
  by("error").textContent = text;
  by("error").hidden = !text;
}

function failed(problem) {
  if (problem.name === "AbortError") return;
  const refused = store.key() ? "The server does not accept this API key." : "The server asks for an API key.";
  error(problem.status === UNAUTHORIZED ? refused : sentence(problem.message));
  if (problem.status === UNAUTHORIZED) openSettings(true);
}

function submit() {
  const text = prompt.value;
  if (running || !text.trim() || !settingsAreValid()) return;
  prompt.value = "";
  grow();
  if (view() === "race") run((signal) => startRace(text, signal));
  else run((signal) => send(text, signal));
}

// --- the chat ---

async function send(text, signal) {
  const here = chat; // another may be opened before the answer ends
  by("empty").hidden = true;
  const question = drawQuestion(text);
  const before = here.messages.map(({ role, content }) => ({ role, content })).filter((one) => one.content);
  const request = { ...requestOf([...before, { role: "user", content: text }]), ...drafting() };
  const answer = new Answer(request.model);
  const shown = new AnswerView(answer, showFigures);
  showFigures(answer);
  const frame = eachFrame(() => {
    shown.sync();
    showFigures(answer);
  });
  by("said").textContent = "Writing.";
  let problem = null;
  try {
    for await (const chunk of chunks(request, store.key(), signal)) {
      answer.take(chunk);
      frame.soon();
    }
    answer.close("done");
  } catch (caught) {
    problem = caught;
    answer.close(caught.name === "AbortError" ? "stopped" : "failed");
  }
  const any = answer.cells.length || answer.tools.length;
  if (here !== chat) frame.drop();
  else if (any || !problem) frame.now();
  else takeBack(text, question, shown.item, frame);
  if (!here.gone && (any || !problem)) keep(here, text, answer);
  if (problem) failed(problem);
}

/** Nothing was answered: the message goes back to its field. */
function takeBack(text, question, item, frame) {
  frame.drop();
  question.remove();
  item.remove();
  by("empty").hidden = chat.messages.length > 0;
  const last = chat.messages.at(-1)?.answer;
  showFigures(last ? Answer.restored(last) : new Answer());
  prompt.value ||= text;
  grow();
  by("said").textContent = "";
}

function keep(here, text, answer) {
  here.title ||= text.trim().slice(0, TITLE);
  here.messages.push({ role: "user", content: text });
  here.messages.push({ role: "assistant", content: answer.text(), answer: answer.stored() });
  store.saveChat(here);
  listChats();
  if (here !== chat) return;
  const found = answer.figures();
  const speed = found.speed ? `, ${number(found.speed, 1)} per second` : "";
  by("said").textContent = `${answer.ended === "done" ? "The answer is complete" : "The answer ended early"}: ${found.tokens} tokens${speed}.`;
}

function openChat(next) {
  running?.abort();
  chat = next;
  const last = drawChat(chat, showFigures);
  if (!last) showFigures(new Answer());
  by("empty").hidden = chat.messages.length > 0;
  document.querySelector("input[name=view][value=chat]").checked = true;
  switchView();
  listChats();
  drawer(false);
}

function listChats() {
  const items = store.chats.map((one) => {
    const item = element("li");
    const open = element("button", "quiet", one.title);
    const drop = element("button", "quiet small", "×");
    open.type = drop.type = "button";
    drop.setAttribute("aria-label", `Delete the chat: ${one.title}`);
    if (one.id === chat.id) open.setAttribute("aria-current", "true");
    open.addEventListener("click", () => openChat(structuredClone(one)));
    drop.addEventListener("click", () => {
      store.dropChat(one.id);
      if (one.id === chat.id) {
        chat.gone = true;
        openChat(store.newChat());
      }
      listChats();
      by("new-button").focus();
    });
    item.append(open, drop);
    return item;
  });
  by("chat-list").replaceChildren(...items);
  by("clear-button").hidden = !items.length;
  by("no-chats").hidden = items.length > 0;
}

// --- the race ---

async function startRace(text, signal) {
  const request = requestOf([{ role: "user", content: text }]);
  request.seed ??= randomSeed();
  prompt.value = text;
  grow();
  try {
    const method = raceMethod();
    await race({ request, method, drafts: drafting(method) }, by("together").checked, store.key(), signal, showFigures);
  } catch (problem) {
    failed(problem);
  }
}

function switchView() {
  const racing = view() === "race";
  by("chat").hidden = racing;
  by("race").hidden = !racing;
  document.body.dataset.view = view();
  by("send-button").textContent = racing ? "Start race" : "Send";
  prompt.placeholder = racing ? "Prompt of the race" : "Message";
}

// --- the page's parts ---

function drawer(open) {
  document.body.toggleAttribute("data-drawer", open);
  by("chats-button").setAttribute("aria-expanded", String(open));
}

function grow() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
}

function keys(event) {
  if (event.key !== "Escape" || by("settings").open) return;
  if (!by("tip").hidden) hide();
  if (document.body.hasAttribute("data-drawer")) {
    drawer(false);
    by("chats-button").focus();
  } else running?.abort();
}

function samples() {
  const items = SAMPLES.map((text) => {
    const item = element("li");
    const button = element("button", "sample", text);
    button.type = "button";
    button.addEventListener("click", () => {
      prompt.value = text;
      grow();
      prompt.focus();
    });
    item.append(button);
    return item;
  });
  by("samples").replaceChildren(...items);
}

function bind() {
  by("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  prompt.addEventListener("input", grow);
  addEventListener("resize", grow);
  document.addEventListener("keydown", keys);
  by("stop-button").addEventListener("click", () => running?.abort());
  by("new-button").addEventListener("click", () => {
    openChat(store.newChat());
    prompt.focus();
  });
  by("clear-button").addEventListener("click", () => {
    store.clearChats();
    chat.gone = true;
    openChat(store.newChat());
    by("new-button").focus();
  });
  by("chats-button").addEventListener("click", () => drawer(!document.body.hasAttribute("data-drawer")));
  by("stage").addEventListener("pointerdown", () => drawer(false));
  by("theme-button").addEventListener("click", store.switchTheme);
  by("colors-button").addEventListener("click", () => {
    const on = by("colors-button").getAttribute("aria-pressed") !== "true";
    by("colors-button").setAttribute("aria-pressed", String(on));
    document.body.toggleAttribute("data-uncolored", !on);
  });
  for (const radio of document.querySelectorAll("input[name=view]")) radio.addEventListener("change", switchView);
}

async function connect() {
  try {
    await learn();
    error("");
  } catch (problem) {
    failed(problem);
  }
}

function folded() {
  const phone = matchMedia("(max-width: 800px)");
  const fold = () => (by("panel").open = !phone.matches);
  phone.addEventListener("change", fold);
  fold();
}

watch();
bind();
bindSettings(connect, failed);
samples();
folded();
openChat(store.newChat());
if (matchMedia("(min-width: 801px)").matches) prompt.focus();
await connect();
document.body.dataset.ready = "";

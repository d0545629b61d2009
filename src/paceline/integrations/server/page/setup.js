// The settings: their fields, what the server offers, and the request that they make.

import { get } from "./stream.js";
import { key, saveKey, saveSettings, settings } from "./store.js";
import { element } from "./tokens.js";

export const PLAIN = "plain";
const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];
const LARGEST_SEED = 2 ** 31;
const by = (id) => document.getElementById(id);
const field = (name) => by(`s-${name}`);
const dialog = by("settings");

export const server = { models: [], methods: [], default_method: "auto", chat_template: true };

export function openSettings(asksForKey = false) {
  if (asksForKey) by("key-row").hidden = false;
  if (!dialog.open) dialog.showModal();
  (asksForKey ? field("key") : field("model")).focus();
}

/** What the server has. It throws what went wrong. */
export async function learn() {
  const models = await get("v1/models", key());
  server.models = models.data.map((one) => one.id);
  options("model", server.models, server.models[0]);
  await learnModel();
}

/** What the server says of the chosen model. */
async function learnModel() {
  const asked = settings.model;
  const props = await get(`props?model=${encodeURIComponent(asked)}`, key());
  if (asked !== settings.model) return; // another was chosen meanwhile
  Object.assign(server, props);
  server.methods = [...new Set([server.default_method, ...(props.methods ?? []), PLAIN])];
  options("method", server.methods, server.default_method);
  field("temperature").placeholder = `default: ${server.default_temperature ?? "the model's"}`;
  const context = server.context_length ? `${server.context_length.toLocaleString("en")} tokens of context` : "";
  by("model-note").textContent = context;
  by("about-server").textContent = server.version ? `Paceline ${server.version}` : "";
  by("continues").hidden = server.chat_template !== false;
  named();
}

function options(name, values, otherwise) {
  const chosen = values.includes(settings[name]) ? settings[name] : otherwise;
  const items = values.map((value) => {
    const item = element("option", "", value);
    item.value = value;
    return item;
  });
  field(name).replaceChildren(...items);
  field(name).value = settings[name] = chosen;
}

function named() {
  by("chosen").textContent = [settings.model, settings.method].filter(Boolean).join(" · ");
}

export function bindSettings(keyChanged, failed) {
  for (const name of [...NUMBERS, "system"]) field(name).value = settings[name] ?? "";
  if (key()) by("key-row").hidden = false;
  field("key").value = key();
  field("key").addEventListener("change", () => {
    saveKey(field("key").value.trim());
    keyChanged();
  });
  for (const name of [...NUMBERS, "system", "model", "method"]) {
    field(name).addEventListener("input", () => {
      settings[name] = field(name).value;
      saveSettings();
      named();
    });
  }
  field("model").addEventListener("change", () => learnModel().catch(failed));
  by("settings-button").addEventListener("click", () => openSettings());
  by("settings-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("keydown", (event) => event.key === "Enter" && event.target.matches("input") && dialog.close());
}

/** Whether all numbers are ones that a request may hold; if not, the first that is not is shown. */
export function settingsAreValid() {
  const wrong = NUMBERS.map(field).find((input) => !input.checkValidity());
  if (!wrong) return true;
  openSettings();
  wrong.reportValidity();
  return false;
}

export function raceMethod() {
  if (settings.method !== PLAIN) return settings.method;
  return server.default_method === PLAIN ? server.methods.find((name) => name !== PLAIN) : server.default_method;
}

export const randomSeed = () => Math.floor(Math.random() * LARGEST_SEED);

/** A request without its method. Empty fields are the server's to choose. */
export function requestOf(messages) {
  const system = settings.system?.trim() ? [{ role: "system", content: settings.system }] : [];
  const request = { model: settings.model, messages: [...system, ...messages] };
  for (const name of NUMBERS) {
    if (settings[name] === undefined || settings[name] === "") continue;
    request[name === "max_tokens" ? "max_completion_tokens" : name] = Number(settings[name]);
  }
  return request;
}

/** How a request names its method. The server's own goes without saying: it may be one that no request may name. */
export function drafting(method = settings.method) {
  if (method === PLAIN) return { speculative: false };
  return method === server.default_method ? {} : { method };
}

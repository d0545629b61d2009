// What the browser keeps: settings and chats in its storage, the API key in that of the tab alone.

const MOST_CHATS = 50;

function read(storage, name, otherwise) {
  try {
    return JSON.parse(window[storage].getItem(`paceline.${name}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function write(storage, name, value) {
  try {
    window[storage].setItem(`paceline.${name}`, JSON.stringify(value));
    return true;
  } catch {
    return false; // storage is full, or forbidden
  }
}

export const settings = read("localStorage", "settings", {});
export const saveSettings = () => write("localStorage", "settings", settings);

export const key = () => read("sessionStorage", "key", "");
export const saveKey = (value) => write("sessionStorage", "key", value);

export let chats = [];
loadChats();

/** Read again before each change: another tab may have changed them. */
function loadChats() {
  const found = read("localStorage", "chats", []);
  chats = Array.isArray(found) ? found.filter((one) => Array.isArray(one?.messages)) : [];
}

/** The newest first. When the storage is full, the oldest chats go. */
export function saveChat(chat) {
  loadChats();
  chats = [chat, ...chats.filter((one) => one.id !== chat.id)].slice(0, MOST_CHATS);
  while (!write("localStorage", "chats", chats) && chats.length > 1) chats = chats.slice(0, -1);
}

export function dropChat(id) {
  loadChats();
  chats = chats.filter((one) => one.id !== id);
  write("localStorage", "chats", chats);
}

export function clearChats() {
  chats = [];
  localStorage.removeItem("paceline.chats");
}

export function newChat() {
  return { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "", messages: [] };
}

export function switchTheme() {
  const dark = getComputedStyle(document.documentElement).getPropertyValue("color-scheme").trim();
  const isDark = dark === "dark" || (dark !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  const next = isDark ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("paceline.theme", next);
  } catch {
    // the theme holds until the page is left
  }
}

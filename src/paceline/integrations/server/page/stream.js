// The server's protocol: requests, the stream of an answer, and errors as one sentence.

const LONGEST_SENTENCE = 300;
const BROKEN = "The connection ended before the text did.";

export class ServerError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** JSON of one of the server's addresses, which are relative: a proxy may serve the page below a path. */
export async function get(path, key) {
  const response = await asked(path, { headers: headers(key) });
  return response.json();
}

/** The chunks of one answer. Stopping it (`signal`) closes the connection, which ends the text in the server. */
export async function* chunks(request, key, signal) {
  const body = JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true }, return_pieces: true });
  const sent = { ...headers(key), "Content-Type": "application/json" };
  const response = await asked("v1/chat/completions", { method: "POST", headers: sent, body, signal });
  for await (const data of events(response.body)) {
    if (data.startsWith("[DONE]")) return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerError(sentence(chunk.error.message), chunk.error.code);
    yield chunk;
  }
  throw new ServerError(BROKEN);
}

/** The data of server-sent events; comments (`: ping`) and other fields are skipped. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let lines = [];
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(broken);
      if (done) return;
      const parts = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = parts.pop();
      for (const line of parts) {
        if (line.startsWith("data:")) lines.push(line.slice(5).replace(/^ /, ""));
        else if (line === "" && lines.length) {
          yield lines.join("\n");
          lines = [];
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** A broken connection is an error with a sentence of ours; each browser has another one. */
function broken(error) {
  throw error.name === "AbortError" ? error : new ServerError(BROKEN);
}

function headers(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function asked(path, options) {
  let response;
  try {
    response = await fetch(path, { ...options, credentials: "same-origin", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server does not answer.");
  }
  if (response.ok) return response;
  const said = await response.json().then((found) => found?.error?.message, () => "");
  throw new ServerError(sentence(said) || `The server answered with status ${response.status}.`, response.status);
}

/** A message in one line, of a length that can be read. */
export function sentence(message) {
  const said = String(message ?? "").replace(/\s+/g, " ").trim();
  const line = said.replace(/^[a-z]+ /, (word) => word[0].toUpperCase() + word.slice(1));
  return line.length > LONGEST_SENTENCE ? `${line.slice(0, LONGEST_SENTENCE)}…` : line;
}

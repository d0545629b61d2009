// One answer as data: cells of text, the tokens behind each, and what is counted of them. It knows nothing of the page.

const JOINERS = /[\u200c\u200d]/;
const MARK = /^\p{M}/u;
const VIRAMAS =
  /[\u094d\u09cd\u0a4d\u0acd\u0b4d\u0bcd\u0c4d\u0ccd\u0d3b\u0d3c\u0d4d\u0dca\u0e3a\u0f84\u1039\u103a\u1714\u17d2\u1a60\u1b44]$/;

/** Whether two texts are drawn as one: a mark goes onto what stands before it, a virama binds two consonants. */
export function joined(before, after) {
  return JOINERS.test(before.at(-1)) || JOINERS.test(after[0]) || VIRAMAS.test(before) || MARK.test(after);
}

export class Answer {
  constructor(name = "") {
    this.name = name;
    this.cells = []; // {part: "content" | "reasoning", text, tokens: [{token, source, round, kind, text}]}
    this.tools = []; // {name, arguments}
    this.rounds = []; // {round, sources: [source of each token]}
    this.counts = new Map(); // source -> tokens
    this.own = new Map(); // kind of the model's own tokens -> tokens
    this.tokens = 0;
    this.finish = null;
    this.ended = "";
    this.report = {}; // usage, timings, metrics of the last chunk
    this.asked = performance.now();
    this.first = this.last = null;
    this.pending = []; // tokens whose text is not shown yet
  }

  take(chunk, now = performance.now()) {
    const pieces = chunk.paceline?.pieces ?? [];
    for (const piece of pieces) this.#count(piece);
    for (const choice of chunk.choices ?? []) this.#choice(choice);
    if (this.first === null && (this.tokens || this.cells.length || this.tools.length)) this.first = now;
    if (pieces.length || chunk.choices?.length) this.last = now;
    for (const name of ["usage", "timings", "metrics"]) if (chunk[name]) this.report[name] = chunk[name];
  }

  #choice(choice) {
    const delta = choice.delta ?? {};
    this.#place("reasoning", delta.reasoning_content ?? delta.reasoning ?? "");
    this.#place("content", delta.content ?? "");
    for (const call of delta.tool_calls ?? []) this.#call(call);
    this.finish = choice.finish_reason ?? this.finish;
  }

  #count(piece) {
    const token = { token: piece.token, source: piece.source ?? "", round: piece.round, kind: piece.kind, text: piece.text };
    this.pending.push({ ...token, rest: piece.text });
    if (piece.token === null) return;
    this.tokens += 1;
    this.counts.set(token.source, (this.counts.get(token.source) ?? 0) + 1);
    this.drafting ??= token.kind !== "plain" || !!token.source; // whether the first token was drafted
    if (!token.source) this.own.set(token.kind, (this.own.get(token.kind) ?? 0) + 1);
    if (this.rounds.at(-1)?.round !== token.round) this.rounds.push({ round: token.round, sources: [] });
    this.rounds.at(-1).sources.push(token.source);
  }

  /** Cut a text where tokens begin. A server may hold text back, or leave out what only marks its parts. */
  #place(part, text) {
    while (text) {
      const [at, cut] = this.#carrier(text);
      if (at < 0) return this.#append(part, text, []);
      const tokens = this.pending.splice(0, at + 1);
      const carrier = tokens.at(-1);
      const rest = carrier.rest.slice(cut);
      const shown = text.startsWith(rest) ? rest : text;
      if (shown.length < rest.length) this.pending.unshift({ ...carrier, rest: rest.slice(shown.length) });
      this.#append(part, shown, tokens);
      text = text.slice(shown.length);
    }
  }

  /** The pending token whose text begins a text, and how much of the token's own text stands before it. */
  #carrier(text) {
    const begins = (rest) => rest && (text.startsWith(rest) || rest.startsWith(text));
    const whole = this.pending.findIndex((one) => begins(one.rest));
    if (whole >= 0) return [whole, 0];
    const last = this.pending.findIndex((one) => one.rest.length > 1);
    for (let cut = 1; last >= 0 && cut < this.pending[last].rest.length; cut += 1) {
      if (begins(this.pending[last].rest.slice(cut))) return [last, cut];
    }
    return [-1, 0];
  }

  #append(part, text, tokens) {
    const facts = tokens.map(({ rest: _, ...token }) => token).filter((token) => token.token !== null);
    const before = this.cells.at(-1);
    if (before?.part === part && before.text && (!facts.length || joined(before.text, text))) {
      before.text += text;
      before.tokens.push(...facts);
    } else this.cells.push({ part, text, tokens: facts });
  }

  #call(call) {
    const place = call.index ?? this.tools.length;
    const found = (this.tools[place] ??= { name: "", arguments: "" });
    found.name += call.function?.name ?? "";
    found.arguments += call.function?.arguments ?? "";
  }

  /** The text is over: `ended` says how, and a token without text ended it. */
  close(ended) {
    this.ended = ended;
    const silent = this.pending.filter((one) => one.token !== null && !one.text);
    if (ended === "done" && silent.length) this.#append("content", "", silent);
    this.pending = [];
  }

  text(part = "content") {
    return this.cells.filter((cell) => cell.part === part).map((cell) => cell.text).join("");
  }

  /** All that the model said, for comparing. */
  whole() {
    return this.text("reasoning") + this.text() + this.tools.map((call) => `${call.name}(${call.arguments})`).join("");
  }

  get promptRound() {
    // The forward over a prompt brings one token and is no round. There is none if the prompt's rows were kept. Only
    // the report at the end says which is true; before it, a first token without a draft is taken for the prompt's.
    const [first, counted] = [this.rounds[0], this.report.metrics?.speculative_decoding?.num_rounds];
    if (counted !== undefined) return counted < this.rounds.length ? 0 : -1;
    return first?.round === 0 && !this.drafting ? 0 : -1;
  }

  figures() {
    const { timings = {}, metrics = {}, usage } = this.report;
    const speculative = metrics?.speculative_decoding ?? {};
    const apart = this.promptRound === 0 ? 1 : 0;
    const rounds = this.rounds.length - apart;
    const seconds = this.first === null ? 0 : (this.last - this.first) / 1000;
    const measured = seconds > 0 && this.tokens > 1 ? (this.tokens - 1) / seconds : null;
    const total = this.tokens || usage?.completion_tokens || timings.predicted_n || 0;
    let accepted = 0;
    for (const [source, count] of this.counts) accepted += source ? count : 0;
    return {
      speed: timings.predicted_per_second || measured,
      each: rounds > 0 ? (this.tokens - apart) / rounds : (speculative.tokens_per_round ?? null),
      first: this.first === null ? null : (this.first - this.asked) / 1000,
      seconds: this.last === null ? 0 : (this.last - this.asked) / 1000,
      tokens: total,
      rounds: rounds > 0 ? rounds : (speculative.num_rounds ?? 0),
      drafted: timings.draft_n ?? speculative.num_draft_tokens ?? null,
      accepted: timings.draft_n_accepted ?? accepted,
    };
  }

  /** Plain data for the browser's storage. */
  stored() {
    const { name, cells, tools, finish, ended, report } = this;
    const kept = cells.map((cell) => [
      cell.part === "content" ? 0 : 1,
      cell.text,
      ...cell.tokens.map((one) => [one.token, one.source, one.round, one.kind, one.text === cell.text ? 0 : one.text]),
    ]);
    return { name, cells: kept, tools, finish, ended, report, times: [this.asked, this.first, this.last] };
  }

  static restored(data) {
    const answer = new Answer(data.name);
    for (const [part, text, ...tokens] of data.cells) {
      const facts = tokens.map(([token, source, round, kind, own]) => ({ token, source, round, kind, text: own === 0 ? text : own }));
      for (const one of facts) answer.#count(one);
      answer.cells.push({ part: part ? "reasoning" : "content", text, tokens: facts });
    }
    const { tools, finish, ended, report } = data;
    [answer.asked, answer.first, answer.last] = data.times;
    return Object.assign(answer, { tools, finish, ended, report, pending: [] });
  }
}

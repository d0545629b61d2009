"""A chat: what is read again from turn to turn, how replies end, and what an interruption leaves."""

import copy
import io
import itertools
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

import families
import paceline
from engine import tabled
from paceline.api import writing
from paceline.api.chat import Conversation
from paceline.api.model import LanguageModel
from paceline.api.prompts import Reading, read
from paceline.api.writing import Generation
from paceline.engine.loop import Session
from paceline.vocabulary import Vocabulary
from paceline.vocabulary.transcript import STOP, Transcripts, continuation, render
from test_cli import say
from tokenizer_kinds import TEXTS, vocabulary_of

TEMPLATE = (
    "{% for m in messages %}<|endoftext|>{{ m['role'] }}\n{{ m['content'] }}<|endoftext|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|endoftext|>assistant\n{% endif %}"
)
SETTINGS: dict[str, Any] = {"temperature": 0.9, "seed": 3, "max_new_tokens": 24}


@pytest.fixture(scope="module")
def templated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "chatty"
    families.save("llama", folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def told(conversation: Conversation, said: str) -> str:
    return "".join(piece.text for piece in conversation.stream(said))


def prompts_of(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The prompts that will be written on."""
    seen: list[list[int]] = []

    def watching(*given: Any) -> Reading:
        found = read(*given)
        seen.append(found.tokens.tolist())
        return found

    monkeypatch.setattr(writing, "read", watching)
    return seen


# --- what is read again -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["model", "templated"])
def test_a_turn_reads_only_what_is_new(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next prompt begins with the last prompt and its reply, in the very tokens that were sampled."""
    lm = paceline.load(request.getfixturevalue(kind), dtype="float32")
    prompts = prompts_of(monkeypatch)
    conversation = Conversation(lm, system="Be brief.", **SETTINGS)
    assert conversation.templated == (kind == "templated")
    for said in ("Hello there", "Zażółć gęślą jaźń?", "Їжак", "x"):
        told(conversation, said)
    for number in range(1, 4):
        before = prompts[number - 1] + conversation.replies[number - 1].tokens
        shared = int(np.argmin([*np.equal(before[: len(prompts[number])], prompts[number][: len(before)]), False]))
        assert shared >= len(before) - 2  # what was cut off at the end may be spelled anew
        reply = conversation.replies[number]
        assert reply.cached_tokens >= shared - 1
        assert reply.prompt_tokens - reply.cached_tokens < 70


def test_what_is_kept_changes_no_reply(model: str) -> None:
    """Every reply is what a model writes that reads the same tokens for the first time."""
    lm = paceline.load(model, dtype="float32")
    conversation = Conversation(lm, **SETTINGS)
    for said in ("Hello", "and then?", "why"):
        told(conversation, said)
    fresh = Conversation(paceline.load(model, dtype="float32"), **SETTINGS)
    for said, reply in zip(("Hello", "and then?", "why"), conversation.replies, strict=True):
        fresh._lm.forget()
        told(fresh, said)
        assert fresh.replies[-1].tokens == reply.tokens
        assert fresh.replies[-1].cached_tokens == 0


@pytest.mark.parametrize("kind", ["byte-level", "fallback, strip", "fallback", "metaspace always", "metaspace first"])
def test_a_text_is_continued_with_every_tokenizer(kind: str) -> None:
    """Whatever a tokenizer puts before a text, a continuation spells just itself."""
    vocabulary = vocabulary_of(kind)
    for text in TEXTS[:3]:
        for place in range(1, len(text)):
            head = vocabulary.encode(text[:place], add_special=False).tolist()
            more = continuation(vocabulary, head, text[place:])
            assert more is not None or "metaspace" in kind
            if more is not None:
                assert vocabulary.text(head + more) == vocabulary.text(head) + text[place:]


WAYS: dict[str, Callable[[LanguageModel, list[dict[str, str]]], Generation]] = {
    "chat": lambda lm, messages: lm.chat(messages, **SETTINGS),
    "generate": lambda lm, messages: lm.generate(messages, **SETTINGS),
    "stream": lambda lm, messages: streamed(lm.write(messages, **SETTINGS)),
}


def streamed(text: writing.Writing) -> Generation:
    for _ in text.pieces():
        pass
    return text.result()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["model", "templated"])
def test_messages_with_earlier_replies_read_only_what_is_new(
    kind: str, way: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply that a user appends to the messages is found in the tokens that it was written in."""
    lm = paceline.load(request.getfixturevalue(kind), dtype="float32")
    prompts, messages, replies = prompts_of(monkeypatch), list[dict[str, str]](), list[Generation]()
    for said in ("Hello there", "Zażółć gęślą jaźń?", "Їжак"):
        messages.append({"role": "user", "content": said})
        replies.append(WAYS[way](lm, messages))
        messages.append({"role": "assistant", "content": str(replies[-1].text)})
    conversation = Conversation(lm, **SETTINGS)
    assert [conversation.say(said).tokens for said in ("Hello there", "Zażółć gęślą jaźń?", "Їжак")] == [
        reply.tokens for reply in replies
    ]
    for before, reply, prompt in zip(prompts, replies[:-1], prompts[1:], strict=False):
        assert prompt[: len(before) + len(reply.tokens) - 2] == (before + reply.tokens)[:-2]
    assert all(reply.prompt_tokens - reply.cached_tokens < 70 for reply in replies[1:])
    assert all(reply.cached_tokens > 20 for reply in replies[1:])
    lm.forget()
    assert WAYS[way](lm, messages[:1]).cached_tokens == 0
    assert lm.encode(messages[:-1]).tolist() != prompts[2]  # the tokenizer spells a random text in its own way


def test_the_turns_of_a_conversation_may_be_said_again_as_messages(model: str) -> None:
    """Conversations know their own tokens only; so no reply depends on what others said."""
    lm = paceline.load(model, dtype="float32")
    alone = [Conversation(lm, **SETTINGS).say("Hello").tokens]
    lm.chat("Hello", **SETTINGS | {"seed": 9})
    talk = lm.conversation(**SETTINGS)
    assert [talk.say("Hello").tokens] == alone
    again = Conversation(lm, **SETTINGS)
    lm.chat([*talk.messages, {"role": "user", "content": "on"}], **SETTINGS)
    again.say("Hello")
    assert again.say("on").tokens == talk.say("on").tokens
    assert [message["role"] for message in talk.messages] == ["user", "assistant"] * 2


TURNS = "{% for m in messages %}<|user|>{{ m['content'] | trim }}<|end|>\n{% endfor %}<|user|>"


@pytest.mark.parametrize("end", ["", " ", "\n\n"])
@pytest.mark.parametrize("kind", ["byte-level", "fallback, strip", "fallback", "metaspace always", "metaspace never"])
def test_a_reply_stays_in_its_tokens_behind_every_template(kind: str, end: str) -> None:
    """Also where the tokenizer decodes a space behind special tokens, and where the template strips a reply's end."""
    vocabulary = Vocabulary(copy.deepcopy(vocabulary_of(kind).tokenizer))
    vocabulary.tokenizer.chat_template = TURNS
    transcripts, messages = Transcripts(vocabulary), [{"role": "user", "content": "rider"}]
    for _ in range(3):
        chat = render(vocabulary, messages)
        prompt = transcripts.encode(chat).tolist()
        own = vocabulary.encode("the", add_special=False).tolist()[-1:] * 3  # as no tokenizer would
        blanks = vocabulary.encode(f"e{end}", add_special=False).tolist()[len(vocabulary.encode("e", False)) :]
        before, after = (vocabulary.text(ids, skip_special=False) for ids in (prompt, [*prompt, *own, *blanks]))
        reply = after.removeprefix(before)
        transcripts.keep(chat.text, prompt, reply, [*own, *blanks])
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "on"}]
        following = transcripts.encode(render(vocabulary, messages)).tolist()
        assert following[: len(prompt) + len(own)] == [*prompt, *own]


def test_a_cut_stop_string_is_not_remembered(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply ends before the stop string; what was written of it is not part of the next prompt."""
    lm = paceline.load(model, dtype="float32")
    free = Conversation(lm, **SETTINGS)
    text = told(free, "Hello")
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    prompts = prompts_of(monkeypatch)
    conversation = Conversation(lm, stop=stop, **SETTINGS)
    cut = told(conversation, "Hello")
    assert cut == text[: text.index(stop)]
    told(conversation, "on")
    assert lm.vocabulary is not None
    assert lm.vocabulary.text(prompts[1]) == f"User: Hello\nAssistant:{cut}\nUser: on\nAssistant:"


def test_a_model_without_a_template_is_stopped_before_the_users_turn(model: str) -> None:
    lm = paceline.load(model, dtype="float32")
    free = lm.generate("User: Hello\nAssistant:", **SETTINGS).text
    for stop in ((), free[-3:-1]):
        reply = lm.chat("Hello", stop=stop, **SETTINGS)
        assert reply.text == lm.generate("User: Hello\nAssistant:", **SETTINGS | {"stop": (STOP, *stop)}).text
    assert lm.write([{"role": "user", "content": "Hello"}], stop="###")._stops == (STOP, "###")


def test_a_reset_forgets_the_turns_and_keeps_the_system(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = paceline.load(model, dtype="float32")
    prompts = prompts_of(monkeypatch)
    conversation = Conversation(lm, system="Be brief.", **SETTINGS)
    first = told(conversation, "Hello")
    told(conversation, "more")
    conversation.reset()
    assert told(conversation, "Hello") == first
    assert prompts[2] == prompts[0]


def test_a_turn_may_have_settings_of_its_own(model: str) -> None:
    """They go before those of the conversation, for that turn."""
    talk = paceline.load(model, dtype="float32").conversation(ignore_eos=True, max_new_tokens=3)
    assert len(talk.say("Hello", max_new_tokens=5).tokens) == 5
    assert len(talk.say("Hello").tokens) == 3
    list(talk.stream("Hello", max_new_tokens=4))
    assert len(talk.replies[-1].tokens) == 4
    with pytest.raises(paceline.InputError, match="unknown setting 'max_tokens'; write max_new_tokens"):
        talk.say("Hello", max_tokens=4)  # type: ignore[call-arg]


def test_a_reply_that_is_not_read_to_its_end_was_never_said(model: str) -> None:
    lm = paceline.load(model, dtype="float32")
    conversation = Conversation(lm, **SETTINGS)
    pieces = conversation.stream("Hello")
    next(pieces)
    pieces.close()
    assert conversation.messages == []
    assert told(conversation, "Hello") == told(Conversation(lm, **SETTINGS), "Hello")


def test_a_template_may_refuse(templated: Path) -> None:
    lm = paceline.load(templated)
    assert lm.vocabulary is not None
    lm.vocabulary._tokenizer.chat_template = "{{ raise_exception('no system here') }}"
    with pytest.raises(ValueError, match="no system here"):
        Conversation(lm, system="x")


# --- the command --------------------------------------------------------------------------------------------


class Input(io.TextIOWrapper):
    """Standard input: a pipe, or a terminal."""

    terminal = False

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Any:
    def typing(text: str | bytes, terminal: bool = False) -> None:
        raw = text.encode() if isinstance(text, str) else text
        stream = Input(io.BytesIO(raw), encoding="utf8", errors="surrogateescape")
        stream.terminal = terminal
        monkeypatch.setattr(sys, "stdin", stream)

    return typing


FLAGS = ["--temperature", "0.9", "--seed", "3", "--max-new-tokens", "24"]


def test_a_piped_chat_answers_line_by_line(model: str, typed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    typed("Hello\n\n/stats\n/nothing\nAgain\n/stats\n/reset\nHello\n/quit\nnot read\n")
    code, out, error = say(["chat", "--model", model, *FLAGS, "--json"], capsys)
    assert code == 0
    replies = [json.loads(line) for line in out.splitlines()]
    assert [reply["user"] for reply in replies] == ["Hello", "Again", "Hello"]
    assert replies[0]["tokens"] == replies[2]["tokens"]
    for reply in replies:
        assert (reply["model"], reply["device"], reply["method"]) == (model, "cpu", "auto")
        assert (reply["temperature"], reply["seed"], reply["rule"]) == (0.9, 3, "coupled")
        assert reply["fingerprint"]
        assert reply["dtype"]
    assert f"{replies[1]['prompt_tokens']} prompt tokens, {replies[1]['cached_tokens']} of them from the cache" in error
    assert "no command /nothing" in error
    assert "conversation: 2 replies, 48 tokens" in error


def test_a_chat_names_its_new_seed_and_what_is_the_models(
    templated: Path, typed: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every conversation has its own, so that the same words get another reply, and any can be had again."""
    drawn = itertools.count(7)
    monkeypatch.setattr("paceline.api.settings.new_seed", lambda: next(drawn))
    flags = ["chat", "--model", str(templated), "-n", "8", "--json", "--temperature", "0.9"]
    typed("Hello\n/reset\nHello\n")
    code, out, error = say(flags, capsys)
    first, second = map(json.loads, out.splitlines())
    assert (code, first["tokens"] != second["tokens"]) == (0, True)
    for reply in (first, second):
        assert f"{templated}, seed {reply['seed']}\n" in error
        typed("Hello\n")
        _, out, error = say([*flags, "--seed", str(reply["seed"])], capsys)
        assert (json.loads(out)["tokens"], "seed" in error) == (reply["tokens"], False)
        error = f"{templated}, seed {second['seed']}\n"
    assert first["seed"] != second["seed"]
    assert "rounds" not in first
    typed("Hello\n")
    assert "rounds" in json.loads(say([*flags, "--rounds"], capsys)[1])
    typed("Hello\n")
    code, out, error = say(["chat", "--model", "pocket-draft", "-n", "2"], capsys)
    assert error.startswith("pocket-draft, the model's temperature 0.8, seed ")


def test_text_and_pictures_are_the_same_chat(model: str, typed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for flags in ((), ("--show", "tokens"), ("--json",)):
        typed("Hello\nAgain\n")
        shown[flags] = say(["chat", "--model", model, *FLAGS, *flags], capsys)[1]
    texts = [json.loads(line)["text"] for line in shown[("--json",)].splitlines()]
    assert shown[()] == "".join(text.lstrip() + "\n" for text in texts)
    assert shown[("--show", "tokens")].count("the model itself") == 2


def test_a_full_context_ends_the_chat_with_a_sentence(
    tmp_path: Path, typed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    families.save("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 48}))
    typed("Hello\nAgain and again and again\n")
    code, out, error = say(["chat", "--model", str(tmp_path), "--ignore-eos"], capsys)
    assert code == 2
    assert "the model's context of 48 tokens is full; /reset begins a new one" in error
    assert "the model's context holds 48; start a new one" in error
    assert len(out) > 10
    assert "Traceback" not in error


def test_what_is_not_text_is_told(model: str, typed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    typed("zażółć".encode("iso-8859-2"))
    code, _, error = say(["chat", "--model", model], capsys)
    assert code == 2
    assert "standard input is not UTF-8 text" in error


def pressing(presses: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, so many times, in the fifth round; the first one is the end of the prompt."""
    rounds, proper = [0], Session._round

    def interrupted(session: Session) -> Any:
        rounds[0] += 1
        if rounds[0] == 4:
            for _ in range(presses):
                signal.raise_signal(signal.SIGINT)
        return (yield from proper(session))

    monkeypatch.setattr(Session, "_round", interrupted)


@pytest.mark.parametrize("presses", [1, 2])
def test_an_interruption_stops_the_reply_and_not_the_chat(
    presses: int, model: str, typed: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once, and what was written of the reply stands; twice, and it was never said. Either way the next turn is what
    it is after such a history."""
    pressing(presses, monkeypatch)
    typed("Hello\nAgain\n", terminal=True)
    code, out, error = say(["chat", "--model", model, *FLAGS, "--method", "plain", "--json"], capsys)
    replies = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    lm = paceline.load(model)
    if presses == 1:
        assert "the reply was stopped" in error
        assert replies[0]["finish"] == "criterion"
        assert len(replies[0]["tokens"]) == 5
        first = lm.generate("User: Hello\nAssistant:", **SETTINGS).tokens[:5]
        assert replies[0]["tokens"] == first
    else:
        assert "the reply was dropped" in error
        assert [reply["user"] for reply in replies] == ["Again"]
        alone = lm.generate("User: Again\nAssistant:", stop=STOP, **SETTINGS)
        assert replies[0]["tokens"] == alone.tokens


def test_an_interruption_ends_a_piped_chat(
    model: str, typed: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pressing(1, monkeypatch)
    typed("Hello\nAgain\nAnd again\n")
    code, out, error = say(["chat", "--model", model, *FLAGS, "--method", "plain", "--json"], capsys)
    assert code == 130
    assert out == ""
    assert "interrupted" in error


def test_what_is_typed_at_a_terminal_leaves_the_replies_alone(
    model: str, typed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """`chat --json > log`: the prompt is for the terminal, the log is JSON. A line that is no text spoils no chat."""
    typed(b"Hello\nb\xff\nAgain\n", terminal=True)
    code, out, error = say(["chat", "--model", model, *FLAGS, "--json"], capsys)
    assert code == 0
    replies = [json.loads(line) for line in out.splitlines()]
    assert [reply["user"] for reply in replies] == ["Hello", "Again"]
    assert error.count("> ") == 4
    assert "what was typed is not UTF-8 text (byte 0xff at offset 1)" in error


def test_at_a_terminal() -> None:
    """A prompt, a reply, Ctrl-C at the prompt, Ctrl-D."""
    terminal, theirs = pty.openpty()
    command = [sys.executable, "-m", "paceline", "chat", "--no-probe", *FLAGS]
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)}
    chat = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True, close_fds=True
    )
    os.close(theirs)
    screen = Screen(terminal)
    try:
        screen.wait_for(b"> ")
        os.write(terminal, b"Hello\n")
        screen.wait_for(b"--max-new-tokens allows more")
        screen.wait_for(b"> ")
        while not screen.shows(b"> ", 1):  # again, should it have come between the prompt and the reading
            os.kill(chat.pid, signal.SIGINT)
        os.write(terminal, b"\x04")
        assert chat.wait(120) == 0
    finally:
        chat.kill()
        chat.wait()
        os.close(terminal)


class Screen:
    """What a terminal shows, read up to what is waited for."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._unread = b""

    def wait_for(self, text: bytes) -> None:
        assert self.shows(text, 120), f"never said: {text!r}; said: {self._unread!r}"

    def shows(self, text: bytes, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while text not in self._unread:
            if not select.select([self._terminal], [], [], max(0, end - time.monotonic()))[0]:
                return False
            self._unread += os.read(self._terminal, 4096)
        self._unread = self._unread.partition(text)[2]
        return True


def test_chat_needs_a_tokenizer() -> None:
    with pytest.raises(ValueError, match="without a tokenizer"):
        Conversation(LanguageModel(tabled()))


def test_generate_speaks_through_the_template(templated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lm = paceline.load(templated)
    flags = ["generate", "Hello", "--model", str(templated), "--chat", *FLAGS]
    for extra, system in (([], []), (["--system", "Be brief."], [{"role": "system", "content": "Be brief."}])):
        reply = lm.chat([*system, {"role": "user", "content": "Hello"}], **SETTINGS)
        assert say([*flags, *extra], capsys)[1] == reply.text + "\n"
        code, out, _ = say([*flags, *extra, "--json", "--samples", "2"], capsys)
        found = json.loads(out)["samples"]
        assert (code, found[0]["tokens"], found[1]["prompt_tokens"]) == (0, reply.tokens, reply.prompt_tokens)
    assert lm.generate("Hello", **SETTINGS).prompt_tokens != lm.chat("Hello", **SETTINGS).prompt_tokens
    code, _, error = say(["generate", "Hello", "--model", str(templated), "--system", "x"], capsys)
    assert (code, "--system needs --chat" in error) == (2, True)

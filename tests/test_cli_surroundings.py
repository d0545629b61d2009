"""The command line in unfriendly surroundings: closed streams, narrow encodings, files that are none, little memory."""

import io
import json
import os
import pty
import subprocess
import sys
import termios
import traceback
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from rich.text import Text

import families
import paceline
from paceline.cli import main, output
from paceline.cli.options import utf8
from paceline.cli.output import print_json, progress, show
from paceline.files import check_output, write_whole
from test_cli import say
from thinning import thinned

SHORT = ["--max-new-tokens", "6", "--ignore-eos"]


# --- where a page goes --------------------------------------------------------------------------------------


def test_a_page_never_replaces_what_is_no_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    link = tmp_path / "link"
    link.symlink_to(pipe)
    for path in (pipe, loop, link):
        with pytest.raises(ValueError, match=f"cannot write {path}: it is no ordinary file"):
            check_output(path)
    assert pipe.is_fifo()


def test_a_page_goes_where_a_link_leads_and_keeps_permissions(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    file, link = tmp_path / "there" / "page.html", tmp_path / "link.html"
    link.symlink_to(file)
    for mode in (None, 0o600, 0o664):
        if mode is not None:
            file.chmod(mode)
        check_output(link)
        write_whole(link, "text")
        assert link.is_symlink()
        assert "text" in file.read_text(encoding="utf8")
        assert mode is None or file.stat().st_mode & 0o777 == mode
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == ["link.html", "page.html", "there"]


def test_a_folder_that_takes_no_file_is_told_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permissions do not tell everything: a folder of a read-only or virtual file system may look writable."""
    file = tmp_path / "page.html"
    file.write_text("old")

    def refused(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "touch", refused)
    for path in (file, tmp_path / "new.html"):
        with pytest.raises(ValueError, match=f"cannot write {path}: Read-only file system"):
            check_output(path)
    assert file.read_text() == "old"


def test_looking_whether_a_page_can_be_written_leaves_nothing(tmp_path: Path) -> None:
    check_output(tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="File name too long"):
        check_output(tmp_path / ("x" * 300))


# --- streams ------------------------------------------------------------------------------------------------


def outside(arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A command as a shell runs it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    return subprocess.run(
        ["sh", "-c", f"{sys.executable} -m paceline {arguments}"], env=environment, capture_output=True, check=False
    )


@pytest.mark.parametrize(
    ("command", "code", "said"),
    thinned(
        [
            ("generate hi >&-", 2, b"standard output is closed"),
            ("generate hi --max-new-tokens 1 2>&-", 0, b""),
            ("generate - <&-", 2, b"the prompt is empty"),
            ("chat <&-", 0, b""),
        ],
        every=2,
    ),
)
def test_closed_streams_are_told_or_are_empty(command: str, code: int, said: bytes) -> None:
    done = outside(command)
    assert done.returncode == code
    assert said in done.stderr
    assert b"Traceback" not in done.stderr + done.stdout


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_note_begins_on_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text has no newline at its end while it arrives."""
    monkeypatch.setattr(sys, "stdout", screen := Terminal())
    monkeypatch.setattr(sys, "stderr", screen)
    for text in ("Once", "upon\n", "a"):
        output.write(text)
        output.say("note", file=sys.stderr)
    show(Text("time"), color=False, end="")
    output.say("note", file=sys.stderr)
    output.say("bye")
    output.say("note", file=sys.stderr)
    assert screen.getvalue() == "Once\nnote\nupon\nnote\na\nnote\ntime\nnote\nbye\nnote\n"


def at_terminal(arguments: str) -> str:
    """What a command shows at a pseudo terminal."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))  # on none a progress bar draws nothing
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm"}
    command = ["sh", "-c", f"{sys.executable} -m paceline {arguments}"]
    done = subprocess.Popen(command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True)
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # the other end was closed
        while piece := os.read(ours, 4096):
            shown += piece
    os.close(ours)
    assert done.wait() == 0, shown
    return shown.decode(errors="replace").replace("\r\n", "\n")


WARNS = """
import warnings
import torch, transformers
from paceline import DraftTree, Drafter

class Noisy(Drafter):
    summary = source = requires = unfit = "-"
    def propose_one(self, state, budget):
        if len(state.tokens) == 9:
            warnings.warn("a note of the plug-in")
            transformers.logging.get_logger("transformers.x").warning("a hint for programmers")
            transformers.logging.get_logger("transformers.x").error("an error of theirs")
            warnings.warn("deprecated", FutureWarning)
        return DraftTree.chain([])
"""


def test_a_terminal_shows_what_is_meant_for_users(model: str, tmp_path: Path) -> None:
    """No bars and hints of other libraries, but their errors; notes do not stand in the text."""
    (tmp_path / "noisy.py").write_text(WARNS)
    shown = at_terminal(f"generate Hello --model {model} --method {tmp_path}/noisy.py:Noisy -n 9 --ignore-eos")
    assert "it/s" not in shown
    assert "Loading weights" not in shown
    assert "programmers" not in shown
    assert "deprecated" not in shown
    assert "an error of theirs" in shown
    assert "\npaceline: note: a note of the plug-in\n" in shown


@pytest.mark.slow
def test_an_encoding_that_lacks_a_character_gets_its_escape(model: str) -> None:
    done = outside(f"generate 'żółć' --model {model} --show tokens --max-new-tokens 1", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert rb"\u017c\xf3\u0142\u0107" in done.stdout
    assert b"Traceback" not in done.stderr


def test_json_is_json_in_every_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"text": "ÿ żółć 🚀"}
    for encoding in ("ascii", "latin-1", "utf-8"):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="backslashreplace")
        monkeypatch.setattr(sys, "stdout", stream)
        print_json(data)
        stream.flush()
        written = stream.buffer.getvalue()  # type: ignore[attr-defined]
        assert json.loads(written.decode(encoding)) == data


def test_text_of_another_locale_is_read_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsencode", lambda text: text.encode("ascii", "surrogateescape"))
    assert utf8("żółć".encode().decode("ascii", "surrogateescape")) == "żółć"
    assert utf8("żółć") == "żółć"


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "a\udcff"],
        ["generate", "a", "--stop", "a\udcff"],
        ["chat", "--system", "a\udcff"],
        ["demo", "--prompt", "a\udcff"],
    ],
    ids=lambda value: " ".join(value).encode("ascii", "replace").decode(),
)
def test_an_argument_that_is_no_text_is_told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = say(arguments, capsys)
    assert code == 2
    assert "is not UTF-8 text (byte 0xff at offset 1)" in error
    assert error.count("\n") == 1


# --- memory and time ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*clipped to chains")
@pytest.mark.parametrize("tokens", ["9" * 13, "9" * 18, "9" * 30])
def test_a_text_without_end_is_refused(tokens: str, tmp_path: Path) -> None:
    """By a model without a context length: nothing else would limit it."""
    families.save("bloom", tmp_path)
    with pytest.raises(ValueError, match="lower max_new_tokens"):
        paceline.load(tmp_path).generate("x", max_new_tokens=int(tokens))


NO_MEMORY = "paceline generate: error: there is not enough memory"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "\npaceline: interrupted\n"),
        (MemoryError(), 2, NO_MEMORY),
        (torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate"), 2, NO_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"), 2, NO_MEMORY),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_interruption_and_too_little_memory_are_one_sentence(
    error: BaseException,
    code: int,
    said: str,
    model: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from paceline.api.model import LanguageModel

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(LanguageModel, "write", fail)
    found, _, told = say(["generate", "Hello", "--model", model], capsys)
    assert (found, told.strip().count("\n")) == (code, 0)
    assert told.startswith(said)


def test_a_bug_of_ours_keeps_its_traceback(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.api.model import LanguageModel

    def wrong(*_: object, **__: object) -> None:
        raise RuntimeError("shape mismatch")

    monkeypatch.setattr(LanguageModel, "write", wrong)
    with pytest.raises(RuntimeError, match="shape mismatch") as caught:
        main(["generate", "Hello", "--model", model])
    last = traceback.format_exception(caught.value)[-1]
    assert last == "This is a defect of paceline, not a mistake of yours: please report it with the lines above.\n"


def test_an_ngram_longer_than_any_text_costs_nothing(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["generate", "the rider, the rider", "--model", model, *SHORT, "--json", "--rounds", "--method"]
    found = json.loads(say([*common, f"lookup:max_ngram={10**12}"], capsys)[1])
    same = json.loads(say([*common, "lookup:max_ngram=40"], capsys)[1])
    assert found["sources"] == same["sources"]


# --- colours ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "term"), list(enumerate(["dumb", "unknown", "", None, "xterm", "xterm-256color"], start=16))
)
def test_colors_on_request_are_all_sent(
    number: int, term: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With fewer, sources could not be told apart; with none, their brackets would be missing too."""
    for variable in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TERM"):
        monkeypatch.delenv(variable, raising=False)
    if term is not None:
        monkeypatch.setenv("TERM", term)
    show(Text("x", f"on #{number:02x}b4e9"), color=True)  # a style of its own, for a drawn one remembers its codes
    assert f"48;2;{number};180;233m" in capsys.readouterr().out


def test_a_bar_without_anything_to_count_is_not_a_full_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with progress("beginning") as advance:
        advance("loading", 0, 0)
    assert "0/?" in terminal.getvalue()
    assert "0/0" not in terminal.getvalue()

"""What the pages show works when it is pasted: every command is one that there is, every Python block runs, every link
leads somewhere. The slow test runs the commands, page by page."""

import importlib.util
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.cli import parser
from thinning import thinned

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
TODAY = [page for page in PAGES if page.name not in ("lab-log.md", "cli.md")]
"""Pages whose commands are those of today. The lab log keeps those of its days, the reference writes itself."""
FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
OURS = re.compile(r"(?:[A-Z_]+=\S+ )*(paceline|python -m [\w.]+) ?(.*)")
YOURS = (
    *("path/to/", "uk.dict", "news.txt", "hf:", "model.gguf", "draft.gguf", "mlx:", "PATH", "FOLDER", "$name"),
    *("--device cuda", '"cuda"', ".fixed."),
    # a server does not end; `tests/test_server_clients.py` runs what asks it
    *("paceline serve", "base_url=", "=http://127.0.0.1"),
)
"""Marks of a command or a block that wants something of the reader's own."""
NEEDS_A_RUN = "runs/"


def blocks(page: Path, *languages: str) -> Iterator[str]:
    for _, language, body in FENCE.findall(page.read_text(encoding="utf8")):
        if language in languages:
            yield body


def commands(page: Path) -> list[str]:
    """Each command of ours on one line, without what the shell does with its output."""
    lines = (line for body in blocks(page, "", "sh") for line in body.replace("\\\n", " ").splitlines())
    return [re.sub(r"\s+", " ", line.strip()) for line in lines if OURS.fullmatch(line.strip())]


def save_examples(folder: Path) -> None:
    """The drafters of the tutorial, under the names that it saves them by."""
    for example in (ROOT / "examples").glob("*_drafter/*_drafter.py"):
        (folder / example.name).write_bytes(example.read_bytes())


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    text = FENCE.sub("", page.read_text(encoding="utf8"))
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", TODAY, ids=lambda page: page.name)
def test_every_command_is_one_that_there_is(page: Path) -> None:
    for command in commands(page):
        match = OURS.fullmatch(command)
        assert match is not None
        program, rest = match.groups()
        if program != "paceline":
            assert importlib.util.find_spec(program.removeprefix("python -m ")) is not None, command
            continue
        words = shlex.split(rest.split(" > ")[0], comments=True)
        if not {"--help", "--version"} & {*words}:
            parser().parse_args(words)


def test_a_command_that_there_is_not_would_be_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```\npaceline generate Once \\\n  --methods lookup\n```\n\n```python\npaceline bench\n```\n")
    assert commands(page) == ["paceline generate Once --methods lookup"]
    with pytest.raises(SystemExit):
        test_every_command_is_one_that_there_is(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf8"))
    for link in LINK.findall(text):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = page if not path else (page.parent / path).resolve()
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


@pytest.mark.parametrize(
    "page", thinned(page for page in TODAY if any(blocks(page, "python"))), ids=lambda page: page.name
)
@pytest.mark.filterwarnings("default")
def test_every_python_block_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other with the same names, as they would be pasted."""
    bodies = [body for body in blocks(page, "python") if not any(mark in body for mark in (*YOURS, NEEDS_A_RUN))]
    save_examples(tmp_path)
    program = tmp_path / "blocks.py"
    program.write_text("".join(f"exec(compile({body!r}, {page.name!r}, 'exec'))\n" for body in bodies))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    try:
        runpy.run_path(str(program), run_name="__main__")
    finally:
        for name in set(sys.modules) - before:
            if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


@pytest.mark.slow
@pytest.mark.parametrize("page", TODAY, ids=lambda page: page.name)
def test_the_commands_of_a_page_work_one_after_the_other(page: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    save_examples(tmp_path)
    (tmp_path / "papers").symlink_to(ROOT / "papers")
    ours = f"{shlex.quote(sys.executable)} -m paceline"
    failed = []
    for command in commands(page):
        if any(mark in command for mark in YOURS):
            continue
        line = re.sub(r"^((?:[A-Z_]+=\S+ )*)paceline", rf"\1{ours}", command).replace(
            "python -m papers", f"{sys.executable} -m papers"
        )
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            failed.append(f"{command}\n{done.stderr[-500:]}")
    assert failed == []

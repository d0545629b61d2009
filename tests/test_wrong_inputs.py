"""Wrong inputs, and the sentence that each gets: `tests/wrong_inputs.md` is the table, written by

    python tests/test_wrong_inputs.py > tests/wrong_inputs.md

Every sentence is one line without a traceback, and nothing is written for it.
"""

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paceline
from paceline.cli import main

TABLE = Path(__file__).with_name("wrong_inputs.md")
PLUG_INS = {
    "empty.py": "x = 1\n",
    "broken.py": "def f(:\n",
    "two.py": "from paceline import Drafter\nclass A(Drafter): name = 'a'\nclass B(Drafter): name = 'b'\n",
    "fails.py": "import no_such_module\n",
    "exits.py": "raise SystemExit(0)\n",
    "number.py": "Echo = 3\n",
}
COMMANDS = """
paceline generat Once
paceline serve
paceline run Once
paceline generate
paceline generate Once twice
paceline generate Once --prompt-file notes.txt
paceline generate --prompt-file missing.txt
paceline generate --prompt-file latin1.txt
paceline generate ""
paceline generate Once -p Once
paceline generate Once --max_new_tokens 5
paceline generate Once --max-tokens 5
paceline generate Once --temprature 1
paceline generate Once --temp 1
paceline generate Once -c 4096
paceline generate Once --ctx-size 4096
paceline generate Once --threads 4
paceline generate Once --n-gpu-layers 20
paceline generate Once --num-return-sequences 2
paceline generate Once --num-beams 4
paceline generate Once --do-sample
paceline generate Once --generation-config vllm
paceline generate Once --enable-thinking
paceline generate Once --chat --chat-template-kwargs enable_thinking=false
paceline generate Once --chat --chat-template-kwargs '{"enable_thinking":false}'
paceline generate Once --rounds
paceline generate Once --stream
paceline generate Once --grammar g.gbnf
paceline generate Once --load-in-4bit
paceline generate Once --revision main
paceline generate Once --lora adapter
paceline generate Once --chat-template t.jinja
paceline generate Once --assistant-model pocket-draft
paceline generate Once --speculative-config '{}'
paceline generate Once --tensor-parallel-size 2
paceline generate Once --methods lookup
paceline generate Once --method
paceline generate Once --method lookpu
paceline generate Once --method lookup:ngram=3
paceline generate Once --method lookup:max_ngram=many
paceline generate Once --method lookup:papr
paceline generate Once --method lookup@fixed:4
paceline generate Once --method assistant
paceline generate Once --method rest
paceline generate Once --method rest:corpus=missing.rest
paceline generate Once --method ./missing.py:Echo
paceline generate Once --method ./empty.py:Echo
paceline generate Once --method ./empty.py
paceline generate Once --method ./broken.py:Echo
paceline generate Once --method ./fails.py:Echo
paceline generate Once --method ./exits.py:Echo
paceline generate Once --method ./number.py:Echo
paceline generate Once --method ./two.py
paceline generate Once --planner adaptiv
paceline generate Once --planner fixed:many
paceline generate Once --planner fixed:-1
paceline generate Once --num-draft-tokens 4 --planner fixed:4
paceline generate Once --planner calibrated --method lookup
paceline generate Once --rule greedy
paceline generate Once --max-new-tokens 0
paceline generate Once --max-new-tokens 5.5
paceline generate Once --max-new-tokens 99999999999
paceline generate Once --temperature -1
paceline generate Once --temperature hot
paceline generate Once --temperature nan
paceline generate Once --top-p 2
paceline generate Once --seed -1
paceline generate Once --logprobs 3
paceline generate Once --dtype int8
paceline generate Once --device tpu
paceline generate Once --model poket
paceline generate Once --model pocket+ballast:huge
paceline generate Once --model missing/model
paceline generate Once --model notes.txt
paceline generate Once --model model.gguf
paceline generate Once --model org/name-GGUF
paceline generate Once --model name-GGUF:Q4_K_M
paceline generate Once --model https://huggingface.co/missing/model
paceline generate Once --model hf.co/missing/model
paceline generate Once --model https://huggingface.co/datasets/missing/data
paceline generate Once --model https://models.example/missing/model
paceline generate Once --draft-model org/name-GGUF:Q4_K_M --method assistant
paceline generate Once --draft-model hf.co/missing/model --method assistant
paceline generate Once --method assistant:model=https://huggingface.co/missing/model
paceline generate Once --draft-model pocket-foreign --method assistant:translate=words
paceline generate Once --draft-model pocket-foreign --method assistant:translate=context:-1
paceline generate Once --html missing/page.html
paceline generate Once --html notes.txt --prompt-file notes.txt
paceline check --methods lookup
paceline check --sizes 0
paceline bench
paceline bench runn
paceline bench run --suite spec-bnch
paceline bench run --suite prompts:missing.jsonl
paceline bench run --limit 0
paceline bench compare missing
paceline bench report .
paceline bench report missing --out report
paceline dict info notes.txt
paceline dict lookup Once --dict missing.dict
paceline dict build --text missing.txt --out a.dict
paceline export tgi lookup
paceline export vllm --method suffix
paceline export gguf --out model.bin
paceline methods lookpu
paceline completion tcsh
"""
CALLS = """
lm.generate(7)
lm.generate(None)
lm.generate(b"Once")
lm.generate(["Once", "Twice"])
lm.generate([0.5, 1.5])
lm.generate([])
lm.generate("")
lm.generate([99999])
lm.generate([-1])
lm.generate(torch.zeros(2, 3, dtype=torch.long))
lm.generate(np.array(["Once"]))
lm.generate({"text": "Once"})
lm.generate([{"role": "user"}])
lm.generate([{"role": "user", "content": 7}])
lm.generate("Once", stop=3)
lm.generate("Once", n=3)
lm.generate("Once", max_tokens=3)
lm.generate("Once", max_new_tokens=3.0)
lm.generate("Once", max_new_tokens="3")
lm.generate("Once", temprature=1)
lm.generate("Once", temperature="hot")
lm.generate("Once", temperature=None)
lm.generate("Once", do_sample=True)
lm.generate("Once", seed=0.5)
lm.generate("Once", chat_template_kwargs={"enable_thinking": False})
lm.generate("Once", top_k=-1)
lm.generate("Once", eos="</s>")
lm.generate("Once", logprobs=-1)
lm.generate("Once", method=3)
lm.generate("Once", method=paceline.Drafter)
lm.generate("Once", method="assistant")
lm.generate("Once", min_tokens=3)
lm.generate("Once", planner=4)
lm.generate("\\ud800")
lm.generate("Once", criteria=len)
lm.generate("Once", processors=len)
lm.generate("Once", draft_model=3)
lm.generate_batch("Once")
lm.generate_batch(7)
lm.generate_batch(["Once"], n=0)
lm.generate_batch(["Once"], each=[{}, {}])
lm.chat([])
paceline.load("poket")
paceline.load(3)
paceline.load("pocket", dtype="float99")
paceline.load("pocket", dtype=3)
paceline.load("pocket", quantize="int2")
paceline.load("pocket", quantize="int8", dtype="bfloat16")
paceline.load("pocket", quantize="int8", fixed_shapes=True)
paceline.load("pocket", device="tpu")
paceline.load("pocket", device="meta")
paceline.load("pocket", device_map="auto", device="cpu")
paceline.load("")
paceline.load("pocket", torch_dtype="float32")
paceline.load("pocket", load_in_8bit=True)
paceline.load("pocket", load_in_4bit=True)
paceline.load("pocket", quantization_config={})
paceline.load("pocket", revision="main")
paceline.load("pocket", draft_model="pocket-draft")
paceline.load("pocket", max_length=20)
paceline.load("pocket", cache_dir="here")
paceline.generate("Once")
"""
MACHINE = re.compile(r"on [^,;]+, \d+ threads?; (?=make)|--dtype .* --threads \d+|(?<=working directory, ).*")
"""Parts of sentences that name the machine or its folders."""
LM = """The names in the calls: `lm` is `paceline.load("pocket")`."""


def folder_of_files(place: Path) -> None:
    (place / "notes.txt").write_text("Once upon a time\n")
    (place / "latin1.txt").write_bytes("café".encode("latin1"))
    for name, text in PLUG_INS.items():
        (place / name).write_text(text)


def said_by_command(line: str) -> tuple[str, int]:
    """What is printed on standard error, and the exit code. Nothing but a short help is printed on standard output."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(shlex.split(line)[1:])
        except SystemExit as end:
            code = int(end.code or 0)
    if out.getvalue().startswith("usage:"):
        return "its short help", code
    assert code != 0, f"{line}: wrote {out.getvalue()!r}"
    assert not out.getvalue(), f"{line}: wrote {out.getvalue()!r}"
    return MACHINE.sub("...", err.getvalue().strip()), code


def said_by_call(line: str, lm: paceline.LanguageModel) -> str:
    names: dict[str, Any] = {"lm": lm, "paceline": paceline, "np": np, "torch": torch}
    try:
        got = eval(line, names)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return f"no error: {got!r}"


def sentences() -> Iterator[tuple[str, str]]:
    """Every input with its sentence, files named as they were given."""
    for line in filter(None, COMMANDS.splitlines()):
        said, code = said_by_command(line)
        yield line, f"{said} [{code}]" if code != 2 else said
    lm = paceline.load("pocket")
    for line in filter(None, CALLS.splitlines()):
        yield line, said_by_call(line, lm)


def table(rows: list[tuple[str, str]]) -> str:
    cells = ((f"`{line}`", " ".join(said.split()).replace("|", "\\|")) for line, said in rows)
    body = "".join(f"| {line} | {said} |\n" for line, said in cells)
    return f"# Wrong inputs and what they get\n\n{LM}\n\n| input | what is said |\n|---|---|\n{body}"


@contextlib.contextmanager
def somewhere(place: Path) -> Iterator[None]:
    before = Path.cwd()
    folder_of_files(place)
    os.chdir(place)
    try:
        with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
            warnings.simplefilter("ignore")
            patch.setenv("XDG_CACHE_HOME", str(place))  # nothing was calibrated here
            yield
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    with somewhere(tmp_path_factory.mktemp("wrong")):
        return list(sentences())


def test_every_wrong_input_gets_the_sentence_of_the_table(found: list[tuple[str, str]]) -> None:
    assert len(found) >= 60
    assert table(found) == TABLE.read_text(encoding="utf8")


def test_no_sentence_is_a_traceback_or_a_library_s(found: list[tuple[str, str]]) -> None:
    for line, said in found:
        assert "Traceback" not in said, line
        assert not re.match(r"(?!InputError|UnsupportedModel|MissingPackage|AttributeError)\w+Error: ", said), (
            line,
            said,
        )
        assert not said.startswith("no error"), line
        if line.startswith("paceline "):
            assert len(said.splitlines()) == 1, (line, said)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name, somewhere(Path(name)):
        sys.stdout.write(table(list(sentences())))

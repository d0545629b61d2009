"""The command line as users know it: every command, flag, type, default and choice. What scripts rely on changes here
on purpose, never by the way; `docs/cli.md` is where it is explained."""

import argparse
from collections.abc import Iterator

import pytest

from paceline import Sampling, Settings
from paceline.cli import OUTDATED, parser

SURFACE = """\
demo
  --model -m  str  = pocket
  --draft-model -md  str
  --trust-remote-code
  --methods  str +
  --prompt  utf8  repeated
  --max-new-tokens  int  = 48
  --num-draft-tokens  int  = 4
  --temperature  float  = 0.8
  --seed  int  = 0
  --ballast  str
  --no-ballast
  --html  Path
  --color  str  auto|always|never  = auto
  --json
generate
  <PROMPT>  utf8 ?
  --prompt-file  Path
  --model -m  str  = pocket
  --dtype  str
  --device  str
  --trust-remote-code
  --method  str
  --draft-model -md  str
  --num-draft-tokens --num-speculative-tokens  int
  --planner  str
  --rule  str
  --max-new-tokens  int
  --temperature  float
  --top-k  int
  --top-p  float
  --min-p  float
  --repetition-penalty  float
  --presence-penalty  float
  --frequency-penalty  float
  --seed  int
  --stop  utf8  repeated
  --ignore-eos
  --logprobs  int
  --samples  int  = 1
  --show  str  tokens
  --color  str  auto|always|never  = auto
  --explain
  --html  Path
  --json
chat
  --system  utf8
  --model -m  str  = pocket
  --dtype  str
  --device  str
  --trust-remote-code
  --method  str
  --draft-model -md  str
  --num-draft-tokens --num-speculative-tokens  int
  --planner  str
  --rule  str
  --max-new-tokens  int
  --temperature  float
  --top-k  int
  --top-p  float
  --min-p  float
  --repetition-penalty  float
  --presence-penalty  float
  --frequency-penalty  float
  --seed  int
  --stop  utf8  repeated
  --ignore-eos
  --show  str  tokens
  --color  str  auto|always|never  = auto
  --json
calibrate
  --model -m  str  = pocket
  --dtype  str
  --device  str
  --trust-remote-code
  --method  str +
  --draft-model -md  str
  --prompts  str
  --samples  int
  --max-nodes  int
  --lengths  int +
  --batches  int +
  --temperature  float
  --max-new-tokens  int
  --seconds  float
  --threads  int
  --html  Path
  --json
check
  --model -m  str  = pocket
  --dtype  str
  --device  str
  --trust-remote-code
  --draft-model -md  str
  --methods  str +
  --rules  str +
  --sizes  int +
  --planners  str +
  --batch  int +
  --max-new-tokens  int  = 64
  --seed  int  = 0
  --families  str *
  --json
bench
bench suite
  <SUITE>  str ?
  --tasks  names
  --langs  names
  --limit  int
  --data  Path
  --out  Path
  --json
bench run
  --suite  str  = continuation:en
  --tasks  names
  --langs  names
  --limit  int
  --data  Path
  --model -m  str  = pocket
  --dtype  str
  --device  str
  --trust-remote-code
  --draft-model -md  str
  --methods  str +
  --peers  str +
  --num-draft-tokens  int
  --planner  str
  --rule  str  = coupled
  --max-new-tokens  int
  --ignore-eos
  --temperature  float
  --seed  int  = 0
  --follow
  --free  = True
  --repeat  int  = 1
  --warm
  --batch  int
  --qps  float
  --threads  int
  --energy  str
  --watts  float
  --out  Path
  --json
bench compare
  <RUN>  Path +
  --base  str
  --oracle
  --json
bench report
  <RUN>  Path +
  --out  Path  required
  --texts  int  = 50
  --json
bench overhead
  --models  str +  = pocket pocket+ballast:300M
  --draft-model -md  str
  --trust-remote-code
  --methods  str +  plain|lookup|assistant
  --dtype  str  = float32
  --device  str
  --threads  int
  --prompt  utf8  repeated
  --max-new-tokens  int  = 40
  --num-draft-tokens  int  = 4
  --passes  int  = 3
  --json
bench draft-cost
  --rounds  int  = 200
  --model -m  str
  --trust-remote-code
  --dtype  str
  --device  str
  --forwards
  --contexts  int +  = (256, 1024)
  --sequences  int +  = (1,)
  --rows  int +  = (1, 2, 4, 8, 16, 32, 64)
  --json
datastore
datastore build
  --model -m  str  = pocket
  --tokenizer  str
  --trust-remote-code
  --text  Path +  required
  --out  Path  required
  --json
datastore info
  <FILE>  str
  --json
dict
dict build
  --tokenizer --model -m  str  = pocket
  --trust-remote-code
  --text  utf8 +  required
  --field  str  = text
  --out  Path  required
  --language  utf8
  --licence  utf8
  --order  int  = 3
  --entries  int  = 200000
  --min-prob  float  = 0.8
  --max-prefix  int  = 8
  --max-completion  int  = 8
  --min-count  int  = 1
  --ngrams  int  = 1000000
  --memory  str  = 2GB
  --threads  int
  --spill  Path
  --cluster  str
  --json
dict info
  <FILE>  str
  --json
dict lookup
  <TEXT>  utf8
  --dict  str +
  --tokenizer --model -m  str
  --trust-remote-code
  --json
dict emulate
  --dict  Path +
  --text  Path
  --suite  utf8
  --tokenizer --model -m  utf8
  --trust-remote-code
  --data  Path
  --method  str  = dictionary
  --budget  int  = 8
  --limit  int
  --show  str  tokens
  --color  str  auto|always|never  = auto
  --out  Path
  --json
export
  <ENGINE>  str  vllm|llama.cpp|transformers
  <METHOD>  str ?
  --draft-model -md  str
  --num-draft-tokens  int
  --run  Path
  --json
methods
  --json
"""


def commands() -> dict[str, argparse.ArgumentParser]:
    """Every command by its whole name, those below another after it."""
    return dict(below(parser()))


def below(command: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, sub in action.choices.items():
                yield f"{name}{word}", sub
                yield from below(sub, f"{name}{word} ")


def lines() -> Iterator[str]:
    for name, command in commands().items():
        yield name
        yield from (
            f"  {_line(action)}"
            for action in command._actions
            if action.dest != "help" and not isinstance(action, argparse._SubParsersAction)
        )


def _line(action: argparse.Action) -> str:
    words = [" ".join(action.option_strings) or f"<{action.metavar}>"]
    if action.nargs != 0:
        words.append(getattr(action.type, "__name__", "str") + (f" {action.nargs}" if action.nargs else ""))
    if isinstance(action, argparse._AppendAction):
        words.append("repeated")
    if action.required and action.option_strings:
        words.append("required")
    if action.choices:
        words.append("|".join(map(str, action.choices)))
    if action.default is not None and action.default is not False and action.default not in ("", []):
        words.append(f"= {' '.join(action.default) if isinstance(action.default, list) else action.default}")
    return "  ".join(words)


def test_the_surface_is_frozen() -> None:
    assert "\n".join(lines()) + "\n" == SURFACE


def test_every_flag_explains_itself_and_is_never_abbreviated() -> None:
    for command in commands().values():
        assert all(action.help for action in command._actions)
        assert not command.allow_abbrev


def test_consent_to_run_code_can_be_given_wherever_a_model_or_tokenizer_is_opened() -> None:
    opening = {"model", "models", "tokenizer", "tokenizers", "draft_model"}
    names = {name: {action.dest for action in command._actions} for name, command in commands().items()}
    without = {name for name, known in names.items() if known & opening and "trust_remote_code" not in known}
    assert without == {"export"}, "which names models and opens none"


@pytest.mark.parametrize("command", ["demo", "generate", "chat", "check"])
def test_short_flags_are_told_apart(command: str) -> None:
    """argparse takes one dash and the beginning of a flag for the flag, unless the short form is a flag itself."""
    parsed = parser().parse_args([command, "-m", "target", "-md", "draft"])
    assert (parsed.model, parsed.draft_model) == ("target", "draft")
    parsed = parser().parse_args([command, "-m", "target"])
    assert (parsed.model, parsed.draft_model) == ("target", None)


def test_a_hint_never_hides_a_flag_and_names_flags_that_exist() -> None:
    named = {
        name: {flag for action in command._actions for flag in action.option_strings}
        for name, command in commands().items()
    }
    flags = set[str]().union(*named.values())
    assert flags & set(OUTDATED) == {"--prompt"}, "a flag of commands that write on from several; no hint hides it"
    assert {name for name, flags in named.items() if "--prompt" in flags} == {"demo", "bench overhead"}
    assert parser().parse_args(["demo", "--prompt", "x"]).prompt == ["x"]
    assert {word for hint in OUTDATED.values() for word in hint.replace(",", "").split() if word[:2] == "--"} <= flags


def test_defaults_that_help_speaks_of_are_the_librarys() -> None:
    """Those flags pass on only what was given, so their help could drift."""
    told = {action.dest: action.help or "" for action in commands()["generate"]._actions}
    settings, sampling = Settings(), Sampling()
    assert f"(default: {settings.max_new_tokens})" in told["max_new_tokens"]
    assert f"(default: {settings.rule})" in told["rule"]
    assert settings.planner is None
    assert settings.drafter.planner == "adaptive"
    assert "adaptive for auto" in told["planner"]
    assert "(default: as suits the method)" in told["num_draft_tokens"]
    assert f"(default: {sampling.temperature:g})" in told["temperature"]
    assert f"(default: {sampling.seed})" in told["seed"]
    assert settings.spec == Settings(draft_model="x").spec
    assert f"(default: {settings.spec})" in told["method"]

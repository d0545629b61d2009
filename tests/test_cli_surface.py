"""The command line as users know it: every command, flag, type, default and choice stands in `cli_surface.txt`."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline import Sampling, Settings
from paceline.cli import main, parser
from paceline.cli.arguments import Several
from paceline.cli.hints import about_flag, flags_of, hinted, unknown_flag
from paceline.cli.reference import commands
from paceline.drafters import make_drafter
from paceline_lab.commands.export import ENGINES


def every() -> dict[str, argparse.ArgumentParser]:
    """Every command, those below another after it."""
    return {name.partition(" ")[2]: command for name, command in commands("paceline", parser()) if " " in name}


def lines() -> Iterator[str]:
    for name, command in every().items():
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
    if isinstance(action, (argparse._AppendAction, Several)):
        words.append("repeated")
    if action.required and action.option_strings:
        words.append("required")
    if action.choices:
        words.append("|".join(map(str, action.choices)))
    if action.default is not None and action.default is not False and action.default not in ("", []):
        words.append(f"= {' '.join(map(str, action.default)) if isinstance(action.default, list) else action.default}")
    return "  ".join(words)


def test_the_surface_is_frozen() -> None:
    """What scripts rely on changes on purpose, never by the way."""
    assert list(lines()) == Path(__file__).with_name("cli_surface.txt").read_text(encoding="utf8").splitlines()


def test_every_flag_explains_itself_and_is_never_abbreviated() -> None:
    for command in every().values():
        assert all(action.help for action in command._actions)
        assert not command.allow_abbrev


def test_consent_to_run_code_can_be_given_wherever_a_model_or_tokenizer_is_opened() -> None:
    opening = {"model", "models", "tokenizer", "tokenizers", "draft_model"}
    names = {name: {action.dest for action in command._actions} for name, command in every().items()}
    without = {name for name, known in names.items() if known & opening and "trust_remote_code" not in known}
    assert without == {f"export {engine}" for engine in ENGINES}, "which name models and open none"


def test_values_add_up_and_the_first_replaces_the_default() -> None:
    """A second ``--method`` must not silently drop the first."""
    read = parser().parse_args
    asked = ["bench", "time", "overhead", "--model", "a", "b", "-m", "c", "--method", "plain"]
    assert (read(asked).models, read(asked).methods) == (["a", "b", "c"], ["plain"])
    assert read(asked[:3]).models == read(asked[:3]).models != []
    for name, command in every().items():
        plural = [one for one in command._actions if one.option_strings and one.nargs in ("+", "*")]
        assert all(isinstance(one, Several) for one in plural), name


def test_one_name_for_one_thing() -> None:
    """The same short flag, and the singular, in every command."""
    for name, command in every().items():
        flags = {flag: action for action in command._actions for flag in action.option_strings}
        assert flags.get("-n") is flags.get("--max-new-tokens"), name
        assert flags.get("-m") is flags.get("--model"), name
        assert not {"--methods", "--models", "--rules", "--planners", "--peers"} & set(flags), name


@pytest.mark.parametrize("command", ["demo", "generate", "chat", "check"])
def test_short_flags_are_told_apart(command: str) -> None:
    """argparse takes one dash and the beginning of a flag for the flag, unless the short form is a flag itself."""
    parsed = parser().parse_args([command, "-m", "target", "-md", "draft"])
    assert (parsed.model, parsed.draft_model) == ("target", "draft")
    parsed = parser().parse_args([command, "-m", "target"])
    assert (parsed.model, parsed.draft_model) == ("target", None)


KNOWN = {name: flags_of(command) for name, command in every().items()}
ELSEWHERE = """
-c --ctx-size --threads -t --max_new_tokens --num-return-sequences --stream --no-stream --grammar --load-in-4bit
--load-in-8bit --revision --top_k --num_beams --do-sample --stop-sequence --n-gpu-layers -ngl --draft-p-min --port
--tensor-parallel-size --chat-template --lora --prompt-cache --cache-type-k --mlock --hf-repo --no-cnv -cnv
--interactive --file -f --quantization --gpu-memory-utilization --max-tokens --n-predict --temp --repeat-penalty
--batch-size -np --flash-attn --json-schema --logit-bias --draft-max --speculative-config --prompt-lookup-max
--device-map
"""


def test_flags_of_other_tools_are_answered_with_flags_that_exist() -> None:
    """What is written like a flag in an answer of a command is a flag of that command, or of the one that is named."""
    everywhere = {flag for flags in KNOWN.values() for flag in flags}
    for flag in (*ELSEWHERE.split(), *hinted()):
        for name, flags in KNOWN.items():
            if flag in flags:
                continue
            said = about_flag(flag, flags, KNOWN)
            assert "\n" not in said
            assert said.startswith(f"there is no {flag}")
            named = re.findall(r"(?<![\w-])--?[a-z][a-z-]*", said.removeprefix(f"there is no {flag}"))
            assert set(named) <= everywhere | {"--help", "--method"}, (name, said)
            if "; write " in said or "did you mean" in said:
                assert set(named) <= set(flags), (name, said)
    for flag in ELSEWHERE.split():
        assert "--help lists" not in about_flag(flag, KNOWN["generate"], KNOWN), flag


def test_an_unknown_flag_is_named_by_spelling_or_by_its_home() -> None:
    generate = KNOWN["generate"]
    assert about_flag("--temprature", generate, KNOWN).endswith("did you mean --temperature?")
    assert about_flag("--top_p", generate, KNOWN).endswith("write --top-p")
    assert about_flag("-seed", generate, KNOWN).endswith("write --seed")
    assert about_flag("--watts", generate, {"bench run": KNOWN["bench run"]}).endswith("here; bench run has it")
    assert about_flag("--frobnicate", generate, KNOWN).endswith("--help lists what there is")


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("x --nope", "--nope"),
        ("x --nope=3 --other", "--nope"),
        ("--temperature -1 x", None),
        ("x -n5", None),
        ("x -mpocket", None),
        ("x -ngl 3", "-ngl"),
        ("-- --nope", None),
        ("- ", None),
    ],
)
def test_only_what_argparse_takes_for_a_flag_is_one(given: str, found: str | None) -> None:
    assert unknown_flag(given.split(), KNOWN["generate"]) == found
    assert unknown_flag(["a prompt", "- a list -x"], KNOWN["generate"]) is None


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("run", "write generate"),
        ("genrate", "did you mean generate?"),
        ("server", "write serve"),
        ("finetune", "write train"),
        ("xyz", "choose "),
    ],
)
def test_a_misspelt_command_is_answered(word: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parser().parse_args([word, "Once"])
    error = capsys.readouterr().err
    assert error.startswith(f"paceline: error: there is no command '{word}'")
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", [[], ["bench"], ["dict"], ["datastore"]])
def test_a_command_without_its_action_prints_its_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 2
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.startswith(f"usage: {' '.join(['paceline', *command])} ")
    assert "--help" in said.out


def test_defaults_that_help_speaks_of_are_the_librarys() -> None:
    """Those flags pass on only what was given, so their help could drift."""
    told = {action.dest: action.help or "" for action in every()["generate"]._actions}
    settings, sampling = Settings(), Sampling()
    assert f"or {settings.max_new_tokens};" in told["max_new_tokens"]
    assert f"(default: {settings.rule})" in told["rule"]
    assert settings.planner is None
    assert settings.drafter.planner == make_drafter("lookup").planner == "adaptive"
    assert make_drafter("unispec:paper").planner == "fixed"
    assert "(default: adaptive; fixed for NAME:paper)" in told["planner"]
    assert "(default: as many as are worth their time)" in told["num_draft_tokens"]
    assert f"(default: the model's own, or {sampling.temperature:g})" in told["temperature"]
    assert "(default: a new one, which is printed)" in told["seed"]
    assert settings.spec == Settings(draft_model="x").spec
    assert f"(default: {settings.spec})" in told["method"]

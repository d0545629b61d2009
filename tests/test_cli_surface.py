"""The command line as users know it: every command, flag, type, default and choice stands in `cli_surface.txt`."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline import Sampling, Settings
from paceline.cli import parser
from paceline.cli.arguments import OUTDATED, Several
from paceline.cli.reference import commands


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
        words.append(f"= {' '.join(action.default) if isinstance(action.default, list) else action.default}")
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
    assert without == {"export"}, "which names models and opens none"


def test_values_add_up_and_the_first_replaces_the_default() -> None:
    """A second ``--method`` must not silently drop the first."""
    read = parser().parse_args
    asked = ["bench", "overhead", "--model", "a", "b", "-m", "c", "--method", "plain"]
    assert (read(asked).models, read(asked).methods) == (["a", "b", "c"], ["plain"])
    assert read(asked[:2]).models == read(asked[:2]).models != []
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


def test_a_hint_never_hides_a_flag_and_names_flags_that_exist() -> None:
    named = {
        name: {flag for action in command._actions for flag in action.option_strings}
        for name, command in every().items()
    }
    flags = set[str]().union(*named.values())
    assert flags & set(OUTDATED) == {"--prompt"}, "a flag of commands that write on from several; no hint hides it"
    assert {name for name, flags in named.items() if "--prompt" in flags} == {"demo", "bench overhead"}
    assert parser().parse_args(["demo", "--prompt", "x"]).prompt == ["x"]
    assert {word for hint in OUTDATED.values() for word in hint.replace(",", "").split() if word[:2] == "--"} <= flags


def test_defaults_that_help_speaks_of_are_the_librarys() -> None:
    """Those flags pass on only what was given, so their help could drift."""
    told = {action.dest: action.help or "" for action in every()["generate"]._actions}
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

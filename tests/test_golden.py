"""Every text is the one in `golden.json`, whatever was moved or made faster since that was written."""

from pathlib import Path

import pytest

from golden import GROUPS, Text, Texts, differences, dumped, read, write


def golden(group: str) -> Texts:
    return {name: text for name, text in read().items() if name.startswith(f"{group}/")}


@pytest.mark.parametrize("group", GROUPS)
def test_texts_are_the_golden_ones(group: str, tmp_path: Path) -> None:
    expected = golden(group)
    told = differences(expected, write(group, tmp_path))
    assert not told, "\n".join([f"{len(told)} of {len(expected)} texts differ:", *told])


def test_every_golden_text_belongs_to_a_group() -> None:
    assert sum(len(golden(group)) for group in GROUPS) == len(read()) >= 200


def test_the_coupled_golden_texts_depend_on_no_method() -> None:
    texts: dict[str, set[str]] = {}
    for name, text in golden("coupled").items():
        texts.setdefault(name.split("/")[1], set()).add(str(text))
    assert {situation: len(different) for situation, different in texts.items() if len(different) > 1} == {}


def test_another_token_is_seen() -> None:
    texts = read()
    first, second, third, *_ = texts
    changed = texts | {first: texts[first]._replace(tokens=[0, *texts[first].tokens[1:]])}
    assert differences(texts, changed) == [f"{first}: token 0 is 0 and should be {texts[first].tokens[0]}"]
    ended = texts | {second: texts[second]._replace(finish="stop")}
    assert differences(texts, ended) == [f"{second}: ends by 'stop' and should by {texts[second].finish!r}"]
    longer = texts | {third: Text(texts[third].finish, [*texts[third].tokens, 5])}
    assert "tokens and should have" in differences(texts, longer)[0]
    missing = {name: text for name, text in texts.items() if name != first}
    assert differences(texts, missing) == [f"{first}: not written"]
    assert differences(missing, texts) == [f"{first}: not in the file"]
    assert differences(texts, dict(texts)) == []


def test_the_file_has_a_line_per_text(tmp_path: Path) -> None:
    texts = {"a/b": Text("length", [1, 2]), "a/ż": Text("eos", [3])}
    (tmp_path / "f.json").write_text(dumped(texts), encoding="utf8")
    assert read(tmp_path / "f.json") == texts
    assert len(dumped(texts).splitlines()) == len(texts) + 2

"""The script of the paper on cross-family drafting for Polish: its table follows from its watts and speeds."""

import json
import sys

import pytest

from papers.bielik import table12_energy
from papers.bielik.table12_energy import MACHINES, Machine


def test_the_arithmetic_of_the_paper() -> None:
    """Section 6.6: 30 W at 15 tokens/s, and 50 texts of 128 tokens."""
    one = Machine("", 30, None, 15)
    assert one.joules_per_token == 2.0
    assert one.watt_hours(50 * 128) == pytest.approx(12_800 / 3600)
    assert [f"{row.joules_per_token:.1f}" for row in MACHINES] == [str(row.printed) for row in MACHINES]


def test_where_its_text_does_not_follow_from_its_table_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["table12", "--watts", "30", "--tokens-per-second", "20", "--json"])
    table12_energy.main()
    *shown, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert [one["agrees"] for one in found["claims"]] == [True, False, False]
    assert found["claims"][1]["ours"].startswith("1.6 ")
    assert found["claims"][2]["ours"] == "1,200 Wh, 2.8 times the M2 Pro system's 427"
    assert any(line.startswith("| this machine, as stated") and "1.50" in line for line in shown)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--watts", "30"], "give --watts W and --tokens-per-second R"),
        (["--watts", "0", "--tokens-per-second", "15"], "more than 0"),
        (["--watts", "nan", "--tokens-per-second", "15"], "more than 0"),
        (["--watts", "30", "--tokens-per-second", "15", "--texts", "0"], "more than 0"),
    ],
)
def test_bad_numbers_are_told(given: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["table12", *given])
    with pytest.raises(ValueError, match=said):
        table12_energy.main()

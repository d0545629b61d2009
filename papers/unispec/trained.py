"""Tables 3 and 9: beside trained heads, language by language.

A head that learned from one language drafts for that one: beside one that learned from all, the table shows what it
loses in the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paceline_lab import Estimate, Summary
from papers.driver import Given
from papers.lab import names_of
from papers.report import Claim, Report, Way
from papers.speeds import UNKNOWN, by, compared, of_run
from papers.unispec.lab import SizesLab

EAGLE = "eagle"
TRAINED = (f"{EAGLE}:paper",)
ENGLISH = "en"
LEARNED = "EAGLE-2: 2.18x in English, 1.18x in Japanese, 1.14x in German (Llama-3-8B)"
AHEAD: Mapping[bool, str] = {
    True: "2.13x against 2.18x of EAGLE-2 (Llama-3-8B), 1.97x against 2.38x of EAGLE-3 (Llama-3.1-8B)",
    False: "2.45x and 2.21x against 1.18x and 1.14x of EAGLE-2 in Japanese and German (Llama-3-8B)",
}
"""The paper's speed-ups in English, and elsewhere."""


def table3(given: Given) -> Report:
    """Tables 3 and 9: UniSpec beside trained heads, by language.

    The paper's EAGLE-1, 2 and 3 learned from English chats. Heads are named by their folders, several side by side, of
    any method: ``--rivals eagle:paper,head=ALL eagle:paper,head=ENGLISH``. Without a folder it is the head that comes
    with paceline for the model, if there is one. For `pocket`, ``python -m tools.pocket_heads eagle --text
    ../shared/data/text --work FOLDER`` makes a head that learned from its three languages, and with ``--language en``
    one that learned from English alone.
    """
    lab = SizesLab(given)
    rivals = lab.able(given.rivals)
    if not rivals:
        raise ValueError(f"no trained head drafts here: {'; '.join(lab.notes)}")
    entry = lab.sized()
    run = lab.run([*rivals, entry, *lab.beside()])
    return lab.whole(trained(run, entry, rivals))


def trained(run: Summary, entry: str, rivals: list[str]) -> Report:
    names = names_of(rivals)
    claims = [claim for rival, name in names.items() for claim in of_head(run, entry, rival, name)]
    return Report("UniSpec, Tables 3 and 9: trained heads by language", [by("language", of_run(run, names))], claims)


def of_head(run: Summary, entry: str, rival: str, name: str) -> Iterator[Claim]:
    """What a head loses outside English, and how it stands to UniSpec in each language. The paper's heads are
    EAGLE's."""
    home, has = spoken(run, rival, ENGLISH), name.startswith(EAGLE)
    for language in run.languages:
        if language != ENGLISH and ENGLISH in run.languages:
            claim = f"{name} gains less in {language} than in {ENGLISH}"
            yield compared(claim, LEARNED if has else "", spoken(run, rival, language), home, Way.BELOW)
    for language in run.languages:
        one, other, at_home = spoken(run, entry, language), spoken(run, rival, language), language == ENGLISH
        claim = f"in {language} UniSpec is {'slower' if at_home else 'faster'} than {name}"
        yield compared(claim, AHEAD[at_home] if has else "", one, other, Way.BELOW if at_home else Way.ABOVE)


def spoken(run: Summary, entry: str, language: str) -> Estimate:
    """The speed-up in a language, the mean over its tasks."""
    return run.means(entry, language=language).speed_up_of_means or UNKNOWN

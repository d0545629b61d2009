"""Tables 3 and 9: beside trained heads, language by language.

A head that learned from one language drafts for that one. `tools.pocket_heads` trains such heads for `pocket`; others
are named with their folders.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paceline_lab import Estimate, Summary
from papers.driver import Given
from papers.lab import without_head
from papers.report import Claim, Report, Way
from papers.speeds import UNKNOWN, by, compared, of_run
from papers.unispec.lab import SizesLab

TRAINED = ("eagle:paper",)
ENGLISH = "en"
LEARNED = "EAGLE-2: 2.18x in English, 1.18x in Japanese, 1.14x in German (Llama-3-8B)"
AHEAD: Mapping[bool, str] = {
    True: "2.13x against 2.18x of EAGLE-2 (Llama-3-8B), 1.97x against 2.38x of EAGLE-3 (Llama-3.1-8B)",
    False: "2.45x and 2.21x against 1.18x and 1.14x of EAGLE-2 in Japanese and German (Llama-3-8B)",
}
"""The paper's speed-ups in English, and elsewhere."""


def table3(given: Given) -> Report:
    """Tables 3 and 9: UniSpec beside trained heads, by language.

    The paper's EAGLE-1, 2 and 3 learned from English chats. ``--rivals eagle:paper,head=FOLDER`` names such a head. For
    `pocket`, the head that comes with paceline learned from all three of its languages, and
    ``python -m tools.pocket_heads eagle --text ../shared/data/text --work FOLDER --language en`` makes one that learned
    from English alone.
    """
    lab = SizesLab(given)
    rivals = lab.able(given.rivals)
    if not rivals:
        raise ValueError(f"no trained head drafts here: {'; '.join(lab.notes)}")
    entry = lab.sized()
    run = lab.run([*rivals, entry, *lab.beside()])
    return lab.whole(trained(run, entry, rivals))


def trained(run: Summary, entry: str, rivals: list[str]) -> Report:
    names = {rival: without_head(rival) for rival in rivals}
    claims = [claim for rival, called in names.items() for claim in of_head(run, entry, rival, called)]
    return Report("UniSpec, Tables 3 and 9: trained heads by language", [by("language", of_run(run, names))], claims)


def of_head(run: Summary, entry: str, rival: str, called: str) -> Iterator[Claim]:
    """What a head loses outside English, and how it stands to UniSpec in each language."""
    home = spoken(run, rival, ENGLISH)
    for language in run.languages:
        if language != ENGLISH and ENGLISH in run.languages:
            claim = f"{called} gains less in {language} than in {ENGLISH}"
            yield compared(claim, LEARNED, spoken(run, rival, language), home, Way.BELOW)
    for language in run.languages:
        one, other, at_home = spoken(run, entry, language), spoken(run, rival, language), language == ENGLISH
        claim = f"in {language} UniSpec is {'slower' if at_home else 'faster'} than {called}"
        yield compared(claim, AHEAD[at_home], one, other, Way.BELOW if at_home else Way.ABOVE)


def spoken(run: Summary, entry: str, language: str) -> Estimate:
    """The speed-up in a language, the mean over its tasks."""
    return run.means(entry, language=language).speed_up_of_means or UNKNOWN

"""Twenty requests for a long text in each of a few languages: prose that a language's dictionary should know.

The setting is that of DictSpec's wall-clock runs (section 4.6 there: 20 prompts per language, up to 2,048 new tokens,
batches of at most 5); the requests are our own. English, Polish and Ukrainian ask for the same twenty things. Crimean
Tatar asks for stories, by one frame whose every word is attested in the corpora, in both of its scripts.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.bench.suites.prompts import Prompt, chosen

FRAMED = "the Crimean Tatar requests are one frame with twenty topics and have been read by no native speaker"

ENGLISH = (
    "Tell the history of railways in ten paragraphs.",
    "Describe a small town by a river in each of the four seasons.",
    "Write an essay of 1,000 words on why people keep diaries. Give examples.",
    "The lift in a block of flats is broken. Write a formal complaint to the landlord, then a message to a friend "
    "about the same thing.",
    "Write down a recipe for soup, together with the story of the person who taught it to you.",
    "Write a fairy tale about a miller's daughter and a river that could speak.",
    "Explain to a child of ten how electricity gets to the socket in the wall.",
    "Write a conversation between an old beekeeper and his grandson, who wants to leave for the city.",
    "Write a newspaper report on a school's sports day, with the words of three people who were there.",
    "Compare life in a village with life in a large city in eight paragraphs.",
    "Write a guide for visitors to a museum of bread, room by room.",
    "Write the speech with which a mayor opens a new library.",
    "Write seven days of the diary of a lighthouse keeper.",
    "Explain how to care for an apple orchard, month by month.",
    'Write a story that begins with the sentence "The train did not stop."',
    "Explain what inflation is, with examples from an ordinary shop.",
    "Review a theatre play that does not exist: plot, actors, stage, audience.",
    "Write a letter from a grandmother to her granddaughter, who has moved abroad.",
    "Plan a walk of three days through the mountains and describe every stage of it.",
    "Argue first for working from home and then against it, and say what you conclude.",
)
POLISH = (
    "Opowiedz historię kolei w dziesięciu akapitach.",
    "Opisz małe miasto nad rzeką w każdej z czterech pór roku.",
    "Napisz esej na 1000 słów o tym, dlaczego ludzie prowadzą dzienniki. Podaj przykłady.",
    "W bloku zepsuła się winda. Napisz oficjalną skargę do zarządcy, a potem wiadomość do przyjaciela o tej samej "
    "sprawie.",
    "Zapisz przepis na zupę razem z historią osoby, która cię jej nauczyła.",
    "Napisz baśń o córce młynarza i rzece, która umiała mówić.",
    "Wytłumacz dziesięcioletniemu dziecku, skąd bierze się prąd w gniazdku.",
    "Napisz rozmowę starego pszczelarza z wnukiem, który chce wyjechać do miasta.",
    "Napisz reportaż ze szkolnego dnia sportu, z wypowiedziami trzech osób, które tam były.",
    "Porównaj życie na wsi z życiem w wielkim mieście w ośmiu akapitach.",
    "Napisz przewodnik po muzeum chleba, sala po sali.",
    "Napisz przemówienie, którym burmistrz otwiera nową bibliotekę.",
    "Napisz siedem dni z dziennika latarnika.",
    "Wyjaśnij, jak dbać o sad jabłoniowy, miesiąc po miesiącu.",
    "Napisz opowiadanie, które zaczyna się od zdania „Pociąg się nie zatrzymał”.",
    "Wyjaśnij, czym jest inflacja, na przykładach ze zwykłego sklepu.",
    "Zrecenzuj sztukę teatralną, która nie istnieje: fabułę, aktorów, scenę, publiczność.",
    "Napisz list babci do wnuczki, która wyprowadziła się za granicę.",
    "Zaplanuj trzydniową wędrówkę po górach i opisz każdy jej etap.",
    "Podaj argumenty najpierw za pracą z domu, potem przeciw niej, i powiedz, co z nich wynika.",
)
UKRAINIAN = (
    "Розкажи історію залізниці в десяти абзацах.",
    "Опиши маленьке місто над річкою в кожну з чотирьох пір року.",
    "Напиши есе на 1000 слів про те, чому люди ведуть щоденники. Наведи приклади.",
    "У будинку зламався ліфт. Напиши офіційну скаргу управителю, а потім повідомлення другові про те саме.",
    "Запиши рецепт супу разом з історією людини, яка тебе цього навчила.",
    "Напиши казку про мельникову доньку та річку, яка вміла говорити.",
    "Поясни десятирічній дитині, звідки береться струм у розетці.",
    "Напиши розмову старого пасічника з онуком, який хоче поїхати до міста.",
    "Напиши репортаж зі шкільного дня спорту зі словами трьох людей, які там були.",
    "Порівняй життя в селі з життям у великому місті у восьми абзацах.",
    "Напиши путівник музеєм хліба, зала за залою.",
    "Напиши промову, якою міський голова відкриває нову бібліотеку.",
    "Напиши сім днів зі щоденника доглядача маяка.",
    "Поясни, як доглядати яблуневий сад, місяць за місяцем.",
    "Напиши оповідання, яке починається реченням «Потяг не зупинився».",
    "Поясни, що таке інфляція, на прикладах зі звичайної крамниці.",
    "Напиши рецензію на виставу, якої не існує: сюжет, актори, сцена, глядачі.",
    "Напиши лист бабусі до онуки, яка переїхала за кордон.",
    "Сплануй триденний похід горами й опиши кожен його етап.",
    "Наведи аргументи спершу за роботу з дому, потім проти неї, і скажи, що з них випливає.",
)
CRIMEAN_TATAR = {
    "crh-Cyrl": (
        "{} акъкъында узун бир икяе язынъыз.",
        "Къырым, Багъчасарай, Акъмесджит, Кефе, Къара денъиз, Ана тили, Достлукъ, Баарь, Яз, Кузь, Къыш, Отьмек, "
        "Мектеп, Китап, Эдебият, Музыка, Той, Байрам, Къоранта, Балалыкъ",
    ),
    "crh-Latn": (
        "{} aqqında uzun bir ikâye yazıñız.",
        "Qırım, Bağçasaray, Aqmescit, Kefe, Qara deñiz, Ana tili, Dostluq, Baar, Yaz, Küz, Qış, Ötmek, Mektep, Kitap, "
        "Edebiyat, Muzıka, Toy, Bayram, Qoranta, Balalıq",
    ),
}
REQUESTS: dict[str, Sequence[str]] = {
    "en": ENGLISH,
    "pl": POLISH,
    "uk": UKRAINIAN,
    **{name: [frame.format(topic) for topic in topics.split(", ")] for name, (frame, topics) in CRIMEAN_TATAR.items()},
}


def dictspec(languages: Sequence[str] | None) -> tuple[list[Prompt], list[str]]:
    """The requests of these languages, or of all, and notes."""
    wanted = chosen("dictspec", "language", languages, list(REQUESTS))
    prompts = [
        Prompt(key=f"{language}-dictspec-{number}", task="dictspec", language=language, turns=(request,))
        for language in wanted
        for number, request in enumerate(REQUESTS[language], start=1)
    ]
    return prompts, [FRAMED] if any(language in CRIMEAN_TATAR for language in wanted) else []

"""The requests of tasks in each language: the same everywhere, and no word of them in another language."""

from __future__ import annotations

from typing import NamedTuple


class Phrases(NamedTuple):
    """The requests of one language. Questions and sums are asked as they stand."""

    translate: str | None
    """From English; None for English itself."""
    summarize: str
    answer: str
    """From a passage, which follows it."""
    question: str
    """The heading of the question after the passage."""
    complete: str
    """A Python function, which follows it."""


PHRASES = {
    "en": Phrases(
        None,
        "Summarize the following text:",
        "Answer the question from the passage.",
        "Question:",
        "Complete the following Python function:",
    ),
    "de": Phrases(
        "Übersetze aus dem Englischen ins Deutsche:",
        "Fasse den folgenden Text zusammen:",
        "Beantworte die Frage anhand des Textes.",
        "Frage:",
        "Vervollständige die folgende Python-Funktion:",
    ),
    "fr": Phrases(
        "Traduis de l’anglais en français :",
        "Résume le texte suivant :",
        "Réponds à la question à partir du texte.",
        "Question :",
        "Complète la fonction Python suivante :",
    ),
    "es": Phrases(
        "Traduce del inglés al español:",
        "Resume el siguiente texto:",
        "Responde a la pregunta a partir del texto.",
        "Pregunta:",
        "Completa la siguiente función de Python:",
    ),
    "zh": Phrases(
        "请把下面的英文翻译成中文：",
        "请概括下面这段文字：",
        "请根据下面的文字回答问题。",
        "问题：",
        "请补全下面的 Python 函数：",
    ),
    "ja": Phrases(
        "次の英文を日本語に訳してください。",
        "次の文章を要約してください。",
        "次の文章をもとに質問に答えてください。",
        "質問：",
        "次のPython関数を完成させてください。",
    ),
    "vi": Phrases(
        "Hãy dịch từ tiếng Anh sang tiếng Việt:",
        "Hãy tóm tắt văn bản sau:",
        "Hãy trả lời câu hỏi dựa vào đoạn văn.",
        "Câu hỏi:",
        "Hãy hoàn thành hàm Python sau:",
    ),
    "pl": Phrases(
        "Przetłumacz z angielskiego na polski:",
        "Streść poniższy tekst:",
        "Odpowiedz na pytanie na podstawie tekstu.",
        "Pytanie:",
        "Uzupełnij poniższą funkcję w Pythonie:",
    ),
    "uk": Phrases(
        "Переклади з англійської українською:",
        "Стисло перекажи цей текст:",
        "Дай відповідь на запитання за текстом.",
        "Запитання:",
        "Доповни цю функцію мовою Python:",
    ),
}


def with_text(request: str, text: str) -> str:
    """A request and what it is about."""
    return f"{request}\n\n{text}"


def with_code(request: str, code: str) -> str:
    return f"{request}\n\n```python\n{code.rstrip()}\n```"


def about_passage(phrases: Phrases, passage: str, question: str) -> str:
    space = "" if phrases.question.endswith("：") else " "
    return f"{phrases.answer}\n\n{passage}\n\n{phrases.question}{space}{question}"

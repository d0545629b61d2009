"""What tasks are asked with, in each language: the same request everywhere, and nothing of it in another language."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Phrases:
    """The requests of one language. Questions and sums are asked as they stand."""

    translate: str | None
    """From English; None for English itself."""
    summarize: str
    answer: str
    """From a passage, which follows it."""
    question: str
    """What the question after the passage is headed with."""
    complete: str
    """A Python function, which follows it."""


PHRASES = {
    "en": Phrases(
        translate=None,
        summarize="Summarize the following text:",
        answer="Answer the question from the passage.",
        question="Question:",
        complete="Complete the following Python function:",
    ),
    "de": Phrases(
        translate="Übersetze aus dem Englischen ins Deutsche:",
        summarize="Fasse den folgenden Text zusammen:",
        answer="Beantworte die Frage anhand des Textes.",
        question="Frage:",
        complete="Vervollständige die folgende Python-Funktion:",
    ),
    "fr": Phrases(
        translate="Traduis de l’anglais en français :",
        summarize="Résume le texte suivant :",
        answer="Réponds à la question à partir du texte.",
        question="Question :",
        complete="Complète la fonction Python suivante :",
    ),
    "es": Phrases(
        translate="Traduce del inglés al español:",
        summarize="Resume el siguiente texto:",
        answer="Responde a la pregunta a partir del texto.",
        question="Pregunta:",
        complete="Completa la siguiente función de Python:",
    ),
    "zh": Phrases(
        translate="请把下面的英文翻译成中文：",
        summarize="请概括下面这段文字：",
        answer="请根据下面的文字回答问题。",
        question="问题：",
        complete="请补全下面的 Python 函数：",
    ),
    "ja": Phrases(
        translate="次の英文を日本語に訳してください。",
        summarize="次の文章を要約してください。",
        answer="次の文章をもとに質問に答えてください。",
        question="質問：",
        complete="次のPython関数を完成させてください。",
    ),
    "vi": Phrases(
        translate="Hãy dịch từ tiếng Anh sang tiếng Việt:",
        summarize="Hãy tóm tắt văn bản sau:",
        answer="Hãy trả lời câu hỏi dựa vào đoạn văn.",
        question="Câu hỏi:",
        complete="Hãy hoàn thành hàm Python sau:",
    ),
    "pl": Phrases(
        translate="Przetłumacz z angielskiego na polski:",
        summarize="Streść poniższy tekst:",
        answer="Odpowiedz na pytanie na podstawie tekstu.",
        question="Pytanie:",
        complete="Uzupełnij poniższą funkcję w Pythonie:",
    ),
    "uk": Phrases(
        translate="Переклади з англійської українською:",
        summarize="Стисло перекажи цей текст:",
        answer="Дай відповідь на запитання за текстом.",
        question="Запитання:",
        complete="Доповни цю функцію мовою Python:",
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

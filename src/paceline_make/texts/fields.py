"""Records: which field holds the text, and which one the messages of a chat."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

TEXT = "text"
MESSAGES = "messages"


@dataclass(frozen=True)
class ChatText:
    """A conversation: messages that have a role and a content each."""

    messages: Sequence[dict[str, Any]]


Passage = str | ChatText


@dataclass(frozen=True)
class Fields:
    """Where records have their text."""

    text: str = TEXT
    chats: bool = False
    """Whether a record without a text may have a chat, as `messages`."""

    def passage_of(self, record: Mapping[str, Any], where: str) -> Passage | None:
        """The text or the chat of a record; None where the field is empty."""
        self._refuse_lacking(record, f"{where} has no field")
        value = record.get(self.text)
        if value is None and self.chats:
            return chat_of(record.get(MESSAGES), where)
        if value is not None and not isinstance(value, str):
            raise InputError(f"{where}: the field {self.text} is no text but {type(value).__name__}; name another")
        return value

    def column_of(self, schema: pa.Schema, name: str) -> str:
        """The column that holds texts, or else chats."""
        import pyarrow as pa

        self._refuse_lacking(schema.names, f"{name} has no column")
        if self.text not in schema.names:
            return MESSAGES
        kind = schema.field(self.text).type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
            raise InputError(f"{name}: the column {self.text} is no text but {kind}; name another")
        return self.text

    def column(self, values: list[Any], field: str, name: str) -> Sequence[Passage | None]:
        """The values of such a column."""
        return values if field == self.text else [chat_of(value, name) for value in values]

    def _refuse_lacking(self, names: Iterable[str], lacking: str) -> None:
        there, wanted = list(names), [self.text, *([MESSAGES] if self.chats else [])]
        if not set(wanted) & set(there):
            raise InputError(f"{lacking} {' or '.join(wanted)}; it has {', '.join(there) or 'none'}, name one of them")


def chat_of(messages: Any, where: str) -> ChatText | None:
    if messages is None:
        return None
    if isinstance(messages, list) and messages and all(_is_message(one) for one in messages):
        return ChatText(messages)
    raise InputError(f'{where}: "{MESSAGES}" is no list of roles and contents; mend or remove that record')


def _is_message(one: Any) -> bool:
    return isinstance(one, dict) and isinstance(one.get("role"), str) and "content" in one

"""From the pieces of a text to the events of an assistant's message: content, reasoning, tool calls.

A message is a function of the committed tokens alone: pieces are read one by one, and how rounds or bursts cut the text
changes no event.
"""

from paceline.integrations.server.replies.formats import FORMATS, ReplyFormat, format_of
from paceline.integrations.server.replies.message import Delta, ToolCall
from paceline.integrations.server.replies.reply import ChatReply, finish_reason

__all__ = ["FORMATS", "ChatReply", "Delta", "ReplyFormat", "ToolCall", "finish_reason", "format_of"]

"""Pictures of a text: which token came from where, in a terminal or as a page."""

from paceline.api.pictures.tokens import Cell, TokenPicture, cells, summary

__all__ = ["Cell", "TokenPicture", "cells", "summary"]

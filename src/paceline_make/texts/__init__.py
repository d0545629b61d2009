"""Texts as they are read to make something of them: dictionaries, heads, datastores, the bundled models.

words    words, gaps and n-grams of a line
lines    the bytes of a file as lines of text
fields   the text or the chat of a record
sources  the kinds of files and data sets that texts are read from
corpus   files, folders and data sets as one stream of lines, texts or passages
"""

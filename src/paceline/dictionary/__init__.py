"""Dictionaries: which tokens usually follow the last few tokens of a text, counted on plain text without a model.

keys        the last tokens of a text, as rows or as hashes
header      what a dictionary says of itself: numbers, tokenizer, corpus, the rule by which entries propose
entries     keys, proposals and their probabilities
packing     entries as the sections of a file
file        the file format
old         the file format of versions 2 and 3, which is still read
index       lookup of the longest ending of a text, in memory that processes share
shipped     dictionaries that come with the package
"""

"""A language in a few megabytes: which tokens usually go on in one way, counted on plain text.

words       what a word is, and how a line is cut into n-grams
corpus      files, folders and datasets as one stream of lines
counting    how often each n-gram stands there, within a given memory, here or on a cluster
running     the tokens of n-grams as they stand in running text
statistics  what follows each beginning of an n-gram
table       the entries that are worth keeping
packing     entries as the sections of a file, each told once
file        the format: small, the same bytes every time, believed in nothing
index       looking up the longest ending of a text, in memory that processes share
build       all of it in a row
shipped     dictionaries that come with the package
"""

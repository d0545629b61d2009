"""Dictionaries: which tokens usually follow the last few tokens of a text, counted on plain text without a model.

words       words, gaps and n-grams of a line
lines       the bytes of a file as lines of text
sources     the kinds of files and data sets that a corpus is read from
corpus      files, folders and data sets as one stream of lines
database    DuckDB within a memory limit
counting    counts of n-grams, on this machine
cluster     and on many machines, by Ray
running     tokens of n-grams in running text
statistics  what follows each beginning of an n-gram, token by token
endings     the most probable whole ending of each beginning, as in the DictSpec paper
entries     the choice of entries
packing     entries as the sections of a file
file        the file format
index       lookup of the longest ending of a text, in memory that processes share
build       from counts to a file
trace       how an entry is made from counts, step by step
shipped     dictionaries that come with the package
"""

"""A language in a few megabytes: which tokens usually go on in one way, counted on plain text.

words       what a word is, and how a line is cut into n-grams
lines       the bytes of a file as lines of text
sources     the kinds of files and data sets that a corpus is read from
corpus      files, folders and data sets as one stream of lines
database    DuckDB within the memory that it is given
counting    how often each n-gram occurs, here
cluster     and on many machines
running     the tokens of n-grams as they stand in running text
statistics  what follows each beginning of an n-gram, token by token
endings     and the most probable whole ending of each, as in the DictSpec paper
entries     the entries that are worth keeping
packing     entries as the sections of a file
file        the file format
index       looking up the longest ending of a text, in memory that processes share
build       from counts to a file
trace       how one entry is made of counts, step by step
shipped     dictionaries that come with the package
"""

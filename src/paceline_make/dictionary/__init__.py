"""How dictionaries are made, and how one does on a text.

database    DuckDB within a memory limit
counting    counts of n-grams, on this machine
cluster     and on many machines, by Ray
running     tokens of n-grams in running text
statistics  what follows each beginning of an n-gram, token by token
endings     the most probable whole ending of each beginning, as in the DictSpec paper
build       the choice of entries; from counts to a file
trace       how an entry is made from counts, step by step
emulator    steps of known texts with dictionaries of many sizes at once, without an engine
"""

"""A run: contestants generate texts for the same prompts in turns, and a directory stores every text and round.

contestant  one way to generate texts: our methods (`ours`) or another library (`bench/peers`)
setup       model, suite, contestants and directory of a run
protocol    the order of a run
judge       comparison of a text with plain decoding's
keeping     from a text to its record
record      the contents of the files
directory   the files, and how an interrupted run continues
emulation   known texts in place of a model
"""

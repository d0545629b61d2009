"""A run: contestants write the same prompts in turns, and everything that happened is kept in a directory.

`contestant` is what takes part (`ours`, and the peers of `bench/peers`), `setup` brings them together, `protocol` is
the order of things, `record` what the files hold, `directory` where they are, and how an interrupted run goes on.
"""

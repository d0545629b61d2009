"""Heads of EAGLE, in all their forms: `head` is what they compute, `checkpoint` their files."""

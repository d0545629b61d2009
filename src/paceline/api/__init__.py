"""Load a model and write text with it: one at a time, in batches, as a chat."""

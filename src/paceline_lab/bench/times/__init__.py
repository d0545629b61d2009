"""Timing of the parts of a round: forwards, drafting, logits, and our loop beside transformers' own."""

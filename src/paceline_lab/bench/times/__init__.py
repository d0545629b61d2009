"""What takes time: forwards, drafting, logits, and our loop beside transformers' own."""

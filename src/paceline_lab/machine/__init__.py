"""What this machine takes for a round, and what follows: sizes of drafts, and whether a method pays here."""

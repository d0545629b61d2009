"""The seconds of a round on this machine, and the consequences: sizes of drafts, and whether a method pays here."""

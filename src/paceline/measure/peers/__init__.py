"""Other libraries on the same weights and prompts, one file each."""

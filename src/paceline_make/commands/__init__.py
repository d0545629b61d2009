"""The commands that make something, one file each."""

"""The commands that measure, one file each."""

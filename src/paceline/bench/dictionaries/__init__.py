"""What dictionaries save, counted on known texts: no model is run."""

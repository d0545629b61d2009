"""Training small models from nothing, on texts or on another model's laws."""

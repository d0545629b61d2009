"""How what is bundled is made: models, heads and dictionaries. None of it is shipped. ``python -m tools.pocket`` trains
the models."""

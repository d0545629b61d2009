"""Training, the only room where gradients flow. ``python -m paceline.train.pocket`` makes the bundled models."""

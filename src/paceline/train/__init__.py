"""Training: the only room where gradients flow. The bundled models are made by ``python -m paceline.train.pocket``."""

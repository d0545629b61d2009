"""Hydra: heads on the target's last state and the drafted tokens. `drafter` is the method, `head` the network, `prefix`
its layer over the text, `checkpoint` its files, `fitting` the choice of heads for a model."""

from paceline.drafters.networks.hydra.drafter import Hydra

__all__ = ["Hydra"]

"""Medusa: independent heads on the target's last state. `drafter` is the method, `head` the network, `checkpoint` its
files, `fitting` the choice of heads for a model."""

from paceline.drafters.networks.medusa.drafter import Medusa

__all__ = ["Medusa"]

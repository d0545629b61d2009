"""EAGLE heads draft: `drafter` is the method, `head` the network in all its published forms, `checkpoint` its files and
`names` those of their tensors, `fitting` the choice of a head for a model, `model` the head over its target."""

from paceline.drafters.networks.eagle.drafter import Eagle

__all__ = ["Eagle"]

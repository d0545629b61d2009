"""Draft and target at the same time: `drafter` is the method, `worker` the process that drafts, `messages` what they
say to one another, `rollout` what is drafted ahead, `proxies` for which outcomes."""

from paceline.drafters.networks.mirror.drafter import Mirror

__all__ = ["Mirror"]

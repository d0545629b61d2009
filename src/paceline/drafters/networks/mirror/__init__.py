"""Draft and target at the same time: `drafter` is the method, `worker` the process that drafts, `messages` their
messages, `rollout` the drafts made ahead, `proxies` the outcomes that get one."""

from paceline.drafters.networks.mirror.drafter import Mirror

__all__ = ["Mirror"]

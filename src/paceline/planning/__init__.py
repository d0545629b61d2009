"""How large a draft is: the planners, and the measurements of this machine that they use."""

"""Models in 8-bit integers, whose rows do not depend on what is scored beside them."""

"""How drafts are made, and how a method's name becomes a drafter.

A spec is ``name``, ``name:key=value,key=value``, ``a,b`` (the first that proposes) or ``a+b`` (union in one
tree); ``+`` binds tighter than ``,``. A piece without ``=`` after a comma begins the next method.
"""

from paceline.drafters.base import Ahead, Ask, Budget, Drafter, Enrich, Plain, Seen
from paceline.drafters.spec import available, make_drafter

__all__ = ["Ahead", "Ask", "Budget", "Drafter", "Enrich", "Plain", "Seen", "available", "make_drafter"]

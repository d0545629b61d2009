"""Networks that draft: draft models, trained heads, and draft models in a separate process.

`network` is their contract, `growth` makes a tree of their levels, `reading` is a text that they follow, `drafter` the
base of methods by them, `states` of heads that read the target's hidden states, with
`layers` that these are built of. A folder holds one method.
"""

"""Networks that draft: draft models, trained heads, and draft models in a separate process.

`network` is their contract, `growth` makes a tree of their levels, `reading` is a text that they follow, `drafter` the
base of methods by them, `states` of heads that read the target's hidden states, `beams` of heads with a state for each
path. `marginals` are laws of all levels at once, and `products` the tree of their likeliest paths. `residual` and
`layers` are what heads are made of. `heads`, `checkpoint` and `fitting` find the head for a model and read it. A folder
holds one method.
"""

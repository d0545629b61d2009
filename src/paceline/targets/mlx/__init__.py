"""Models of mlx-lm as targets. `rows` holds keys and values of a text, `forward` stands in for mlx-lm's cache while a
model's own code scores the rows of several drafts, `chained` uses mlx-lm's caches where that is not possible, `anatomy`
finds a model's parts, `probe` decides how drafts are scored, `load` opens a folder. Nothing here loads torch."""

"""Any transformers causal LM: `load` finds it, `probe` decides how far to trust it, `target` scores drafts on it,
through one `forward` whose attention (`attention`) we compute ourselves where the model lets us."""

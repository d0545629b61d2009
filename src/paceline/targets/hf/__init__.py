"""Any transformers causal LM: `load` finds it, `probe` decides how far to trust it, `target` scores drafts on it. A
forward can be computed along several paths (`path`): `own` calls the model, with an attention that we compute
ourselves where the model lets us; `lean` does without the layers of transformers where it knows their structure."""

"""Models whose text must not change. `base` is the contract; each target is a separate file, imported by name so that
transformers is loaded only where it is used."""

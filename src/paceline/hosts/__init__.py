"""Who calls the engine: `python` is the API of this package."""

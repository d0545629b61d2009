"""Training of recurrent heads: `data` encodes texts, `labels` asks the model, `store` keeps its answers, `loss` and
`loop` train, `run` is the whole, `watch` shows it and writes the card, `shapes` says what heads cost."""

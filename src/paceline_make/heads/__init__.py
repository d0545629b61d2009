"""Training of heads of all kinds.

`data` encodes texts, `labels` asks the model, `store` keeps its answers and `batches` chooses from them. A `lesson` is
what a kind of head reads and predicts (`kinds`), `loss` what its predictions are judged by. `loop` trains, `run` is the
whole, `watch` shows it and writes the card; `costs` says what recurrent heads cost.
"""

"""Where things stand in the tables that a forward is given: addresses and sizes, all whole numbers.

A call with hundreds of arrays would take longer than the forward of a small model.
"""

# fmt: off

# A job: one forward, or one product.
(
    KIND, THREADS, MEETING, COUNT, CHOSEN, CHOICE, FIRST, LAST, LAYERS, PENDING, HEAD,  # what to compute
    WIDTH, HEADS, SHARED, SIZE, INNER, VOCABULARY,                                      # sizes of the model
    LAYER_TABLE, LAYER_NUMBERS, NORM, EPS, WEIGHT, SCALES, BIAS,                        # its weights; of the head
    ROWS, EXTRAS, TEXTS, COSINES, SINES,                                                # the rows
    STATES, NORMED, SHORTS, STEPS, PROJECTED, MIXED, GATE, UP, OUT, LOGITS,             # memory to work in
    SCRATCH, SCRATCH_SIZE,                                                              # and each thread's own
    JOB,
) = range(42)
FORWARD, PRODUCT = range(2)
"""Kinds of jobs."""

# A layer's addresses: of weights, with scales and bias directly behind them, and its window (0 for none).
(
    BEFORE, BETWEEN, QUERY_NORM, KEY_NORM, WINDOW,
    QUERY, KEY, VALUE, PROJECT, GATED, RAISED, LOWERED,
    LAYER,
) = (0, 1, 2, 3, 4, 5, 8, 11, 14, 17, 20, 23, 26)
# A layer's numbers.
EPS_BEFORE, EPS_BETWEEN, EPS_QUERY, EPS_KEY, SCALE, VALUE_SHIFT, NUMBERS = range(7)

# A text's buffers in a layer.
CAPACITY, KEYS, VALUES, BUFFERS = range(4)

# A row: its text, its position there, its place in memory, how many of the first places it sees, and where its list of
# further places begins, and how many these are.
TEXT, POSITION, PLACE, PREFIX, FURTHER, FURTHER_COUNT, ROW = range(7)
# fmt: on

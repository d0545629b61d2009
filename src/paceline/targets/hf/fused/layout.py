"""Layout of the tables that a forward is given: addresses and sizes, all whole numbers.

A call with hundreds of arrays would take longer than the forward of a small model.
"""

# fmt: off

# A job: a forward, a product, or forwards and the choice of tokens between them.
(
    FUNCTION, THREADS, MEETING, COUNT, CHOSEN, CHOICE, FIRST, LAST, LAYERS, PENDING, HEAD,  # what to compute
    FORM, HEAD_FORM, NARROW, SCORING, MIXING,                                           # of what kind numbers are
    WIDTH, HEADS, SHARED, SIZE, INNER, VOCABULARY, COARSENESS,                          # sizes of the model
    LAYER_TABLE, LAYER_NUMBERS, NORM, EPS, UNEMBEDDING, _W, _S, _B, _G,                 # its weights; the head's
    ROWS, EXTRAS, TEXTS, ANGLES, SKIPPED,                                               # the rows
    GIVEN, GIVEN_WIDTH,                                                                 # what its first layer reads
    STATES, NORMED, PREPARED, STEPS, PROJECTED, MIXED, GATE, UP, OUT, LOGITS,           # memory to work in
    SCRATCH, SCRATCH_SIZE,                                                              # and each thread's own
    STEP, CHAIN_MEETING, CHAINS, DEPTH, RACES, NEXT_ROWS, NEXT_CHOICE,                  # of drafts, token by token
    EMBEDDING, NARROW_EMBEDDING, DRAWN, DRAFTED, CHANCES,
    LEVELS, BEAMS, TOKENS, ABOVE, PATHS, BEST, BEST_CHANCES, KNOWN,                     # of drafts, beam by beam
    ADAPTERS, RANK, THIN, STREAM_ROWS, STREAMED_FROM,                                   # adapters of streams' rows
    STREAM_EMBEDDING, MOST_STREAMS, MOST_GUESSES, GUESSED, NODES, CANDIDATES,           # of drafts that streams guess
    MAIN_ROWS, PLANNED, ORIGINS, LEAST_GUESS, LEAST_STREAM,
    JOB,
) = range(88)

# How a text's tokens are chosen, as `Warps` has it; the temperature, the mass and the least weight are doubles. Its
# draft has a largest number of tokens, and fewer where it meets an end; a number of forwards read it.
(
    LENGTH, READ, SIZE_OF_RACE, TEMPERATURE, MOST, MASS, LEAST,
    IS_NOISY, INDEX, SAMPLE, SEED, _S2, ENDS, END_COUNT,
    RACE,
) = range(15)

# A draft that streams guess: the place of its last certain token, how many unread tokens stand before that, and where
# all of these are; how many tokens are drafted, whether it goes on, and how many streams and guesses it may have; the
# guesses of the next forward, and the row of logits behind the certain token: those behind guesses follow.
(
    CERTAIN, EARLIER, UNREAD, HAVE, GOES_ON, STREAMS, GUESSES, NODE_COUNT, LOGITS_ROW, GUESSED_TEXT,
) = range(10)
# A node of a forward: its token, the node above it, how many guesses lead to it, and how likely these are, a double;
# the row of logits of its first stream, and how many it has. The certain token is the first node.
NODE_TOKEN, NODE_ABOVE, NODE_LEVEL, NODE_CHANCE, NODE_STREAM, NODE_STREAMS, NODE = range(7)
# A row of a stream: the row that it stands behind, and its number.
ORIGIN_ROW, ORIGIN_STREAM, ORIGIN = range(3)

# A step of a head: what it reads and writes, and from one row of these to the next; how many values; which rows it
# reads instead of those of the same number; what is added before an activation, if it has one, and behind it. Steps
# without a matrix copy.
(
    FROM, FROM_STRIDE, INTO, INTO_STRIDE, INPUTS, OUTPUTS, OF_ROW, ADDED, ADDED_STRIDE, ACTIVE, BESIDE, BESIDE_STRIDE,
    MATRIX, _M1, _M2, _M3, _M4, HEAD_STEP,
) = range(18)
# The steps of a level.
FIRST_STEP, STEP_COUNT, HEAD_LEVEL = range(3)

# Forms of rows that are multiplied: floats, or whole numbers of 16 bits, or of 8 with their total behind them, or of 8
# with the sums of their groups.
FLOATS, SHORTS, BYTES, GROUPED = range(4)

# A linear layer's addresses, first of the function that computes it. Those that it lacks are 0. Only weights of 4 bits
# have multipliers of groups.
PRODUCT, WEIGHT, SCALES, BIAS, GROUPS, LINEAR = range(6)

# An adapter's addresses: of the integers that make its values of a row, of the factors of these, and of the integers
# that make outputs of them, those of a value in a row.
NARROWING, FACTORS, WIDENING, ADAPTER = range(4)

# A layer's addresses: of norms, and where its linear layers stand; and its window (0 for none).
(
    BEFORE, BETWEEN, QUERY_NORM, KEY_NORM, WINDOW,
    QUERY, KEY, VALUE, PROJECT, GATED, RAISED, LOWERED,
    LAYER,
) = (0, 1, 2, 3, 4, *(5 + LINEAR * number for number in range(8)))
MAPS = 7
"""Linear layers of a layer."""
# A layer's numbers.
EPS_BEFORE, EPS_BETWEEN, EPS_QUERY, EPS_KEY, SCALE, VALUE_SHIFT, NUMBERS = range(7)

# A text's buffers in a layer.
CAPACITY, KEYS, VALUES, BUFFERS = range(4)

# A row: its text, its position there, its place in memory, how many of the first places it sees, and where its list of
# further places begins, and how many these are; how many positions a stream is ahead of the row whose window it has.
TEXT, POSITION, PLACE, PREFIX, FURTHER, FURTHER_COUNT, AHEAD, ROW = range(8)
# fmt: on

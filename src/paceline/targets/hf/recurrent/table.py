"""Layout of the table that a recurrence is given: addresses and sizes, all whole numbers."""

from paceline.targets.hf.fused import layout

# fmt: off
(
    VISITS, COUNT, SCRATCH, SLOT, SLOTS,                           # the order of rows; each thread's memory
    STATE, FINAL, LINES, LINE, TOGETHER, HEADS, GROUPS,            # the states of all heads, and their sizes
    QUERY, KEY, VALUE, DECAY, BETA, OUT,                           # the first row of each
    QUERY_ROW, KEY_ROW, VALUE_ROW, DECAY_ROW, BETA_ROW,            # floats from one row to the next
    DECAY_STEP,                                                    # and from one decay of a head to the next, or 0
    RATES,                                                         # those of Mamba-1, or 0
    JOB,
) = range(layout.MEETING + 1, layout.MEETING + 27)
"""They follow the fields of every job: `layout.FUNCTION`, `layout.THREADS` and `layout.MEETING`."""
# fmt: on

# A place of a state: the number of a slot, or the state before the draft, or the state that is kept.
BEFORE, KEPT = -1, -2
# On a GPU, also registers: the state that the visit before has left there, and one that no other visit reads.
HERE, NOWHERE = -3, -4

"""Draft for other machines: a process for every one that connects.

python -m paceline.drafters.mirror 127.0.0.1:7777
"""

from __future__ import annotations

import sys

from paceline.drafters.mirror.place import serve
from paceline.errors import InputError


def main() -> int:
    if len(sys.argv) != 2 or ":" not in sys.argv[1]:
        print("error: say where to listen, as in python -m paceline.drafters.mirror 127.0.0.1:7777", file=sys.stderr)
        return 2
    try:
        serve(sys.argv[1], lambda line: print(line, file=sys.stderr, flush=True))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        pass
    return 130


if __name__ == "__main__":
    sys.exit(main())

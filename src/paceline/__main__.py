"""``python -m paceline``."""

from paceline.cli import main

raise SystemExit(main())

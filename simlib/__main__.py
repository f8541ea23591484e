"""``python -m simlib``."""

from .cli import main

raise SystemExit(main())

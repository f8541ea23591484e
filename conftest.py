"""What all of pytest runs with here: nbval's kernels talk through files (authoring/kernels.py), and
what goes on is written down for `make test` (scripts/progress.py)."""

pytest_plugins = ["kernels", "progress"]

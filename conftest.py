"""What all of pytest runs with here: nbval's kernels talk through files (authoring/kernels.py)."""

pytest_plugins = ["kernels"]

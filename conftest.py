"""What nbval runs here: its kernels talk through files (authoring/kernels.py)."""

pytest_plugins = ["kernels"]

"""What the lessons use: labs, which are sliders over a picture, and data to train on."""

PUBLIC = {"digits": "datasets.digits", "letters": "datasets.letters"}
"""What this package adds to the names of `simlib`: ``{name: "module"}``."""
COMMANDS = ()
"""The course has no commands."""

"""Tools of the lessons: labs, which are sliders over a picture, and data to train on."""

PUBLIC = {"digits": "datasets.digits", "letters": "datasets.letters"}
"""The names that this package adds to `simlib`: ``{name: "module"}``."""
COMMANDS = ()
"""The course has no commands."""

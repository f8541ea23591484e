"""Tools of the lessons: labs, which are sliders over a picture, data to train on, and the command
that opens the course."""

PUBLIC = {"digits": "datasets.digits", "letters": "datasets.letters"}
"""The names that this package adds to `simlib`: ``{name: "module"}``."""
COMMANDS = ("open_lab:add_command",)
"""Functions that add this package's commands to the command line's parsers."""

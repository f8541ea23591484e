"""Exercises of a class: checks of answers, grading in a sandbox, how graded ranks are confined."""

PUBLIC = {"guess": "checks.verdict:guess"}
"""The names that this package adds to `simlib`: ``{name: "module:object"}``."""
COMMANDS = ("grading:add_commands",)
"""Functions that add this package's commands to the command line's parsers."""

"""Colours and sizes of type that all pictures share."""

DPI = 110
INK, PAPER, GREY = "#222222", "#ffffff", "#767676"
TITLE_PT, TEXT_PT, SMALL_PT = 10, 8, 7

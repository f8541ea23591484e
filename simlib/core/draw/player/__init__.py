"""The player: a run as a widget that plays it, in a notebook and without a network."""

from .widget import Player

__all__ = ["Player"]

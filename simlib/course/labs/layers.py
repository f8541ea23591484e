"""A lab's picture in two layers, since most of its time goes into text and ticks that stay."""

from __future__ import annotations

from ...core.draw.figures import own_style


class Layers:
    """What the picture of a lab is made of: the base class of all labs' pictures.

    A state is the values of the lab's controls, in their order or by their names. The background is
    drawn once for many states; the foreground lies above it and is drawn anew for each.
    """

    def background_state(self, *state, **named):
        """What of a state the background depends on: the arguments of `background`, hashable."""
        return ()

    def background(self, *background_state):
        """The Figure with all that stays through most of a drag."""
        raise NotImplementedError

    def foreground(self, figure, *state, **named):
        """Add the rest to the figure; returns the artists."""
        return []

    @own_style
    def draw(self, *state):
        """The whole picture of a state: a Figure."""
        figure = self.background(*self.background_state(*state))
        self.foreground(figure, *state)
        return figure

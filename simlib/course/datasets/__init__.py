"""Training data of the lessons: images and lines of text, bundled or made here."""

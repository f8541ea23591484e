"""Training data of the lessons: images and lines of text. They need no download."""

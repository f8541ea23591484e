"""What lessons train on: images and lines of text, bundled or made here."""

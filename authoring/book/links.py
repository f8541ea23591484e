"""Links of the repository's texts, as they are in the book."""

import os
import re
import subprocess
from pathlib import PurePosixPath

LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
CODE = re.compile(r"(^```.*?^```$|`[^`\n]*\]\([^`\n]*`)", re.MULTILINE | re.DOTALL)
"""Blocks of code, and what looks like a link in a piece of code."""
OWNER = re.compile(r"[/:]([\w.-]+/[\w.-]+?)(?:\.git)?/?$")


def repository(root):
    """``(address, branch)`` of the public repository, or None where none is known.

    The environment's REPOSITORY says it, ``https://host/owner/name@branch``; else the origin of
    the clone, where it is an address of the web.
    """
    said = os.environ.get("REPOSITORY")
    if said is None:
        asked = subprocess.run(
            ["git", "-C", str(root), "remote", "get-url", "origin"], capture_output=True, text=True
        )
        said = asked.stdout.strip() if asked.stdout.startswith("https://") else ""
    address, _, branch = said.partition("@")
    return (address.removesuffix(".git"), branch or "main") if address else None


def within(text, place, change, image):
    """A Markdown text with its links changed; code stays.

    Parameters
    ----------
    text : str
    place : str
        The text's path in the repository.
    change : callable
        ``change(words, path, anchor)`` gives the Markdown for a link to a path of the repository.
    image : callable
        ``image(alt, path)`` gives the Markdown or HTML of a picture.
    """

    def resolved(target):
        return os.path.normpath(PurePosixPath(place).parent / target)

    def link(found):
        words, target = found.groups()
        path, _, anchor = target.partition("#")
        if not path or re.match(r"\w+:", target):
            return found.group()
        return change(words, resolved(path), anchor)

    def picture(found):
        alt, target = found.groups()
        return image(" ".join(alt.split()), resolved(target))

    pieces = CODE.split(text)
    pieces[::2] = [LINK.sub(link, IMAGE.sub(picture, piece)) for piece in pieces[::2]]
    return "".join(pieces)

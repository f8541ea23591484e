"""Links of the repository's texts, as they are in the book."""

import os
import re
import subprocess
from pathlib import PurePosixPath
from urllib.parse import urlsplit

LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
CODE = re.compile(r"(^\s*```.*?^\s*```$|`[^`\n]*\]\([^`\n]*`)", re.MULTILINE | re.DOTALL)
"""Blocks of code, and what looks like a link in a piece of code."""


def repository(root):
    """``(address, branch)`` of the public repository, or None where none is known.

    The environment's REPOSITORY says it, ``https://host/owner/name@branch``; else the origin of
    the clone, where it is an address of the web.
    """
    said = os.environ.get("REPOSITORY")
    if said is not None:
        address, _, branch = said.partition("@")
        return (address, branch or "main") if address else None
    asked = subprocess.run(
        ["git", "-C", str(root), "remote", "get-url", "origin"], capture_output=True, text=True
    )
    origin = urlsplit(asked.stdout.strip())
    if origin.scheme != "https":
        return None
    host = origin.netloc.rpartition("@")[2]  # without a name and a password
    return f"https://{host}{origin.path.removesuffix('.git')}", "main"


def colab(repository, place):
    """The address at which Colab opens a notebook. None where it cannot: it reads GitHub only."""
    address, branch = repository or ("", "")
    host, _, name = address.partition("github.com/")
    if host != "https://":
        return None
    return f"https://colab.research.google.com/github/{name}/blob/{branch}/{place}"


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
        if re.match(r"\w+:", target):
            return found.group()
        return image(" ".join(alt.split()), resolved(target))

    pieces = CODE.split(text)
    pieces[::2] = [LINK.sub(link, IMAGE.sub(picture, piece)) for piece in pieces[::2]]
    return "".join(pieces)

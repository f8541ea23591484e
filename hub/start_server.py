"""What a student's server is started by, as the student: copies what is missing, then serves.

    start_server.py HANDOUT [arguments of jupyterhub-singleuser ...]

HANDOUT is the folder that `simlib handout` wrote. A notebook that the student has stays as it is:
to get one anew, rename it, and start the server again. What checks expect is always the handout's.
"""

import os
import shutil
import sys
from pathlib import Path

FOLDERS = ("notebooks", "exercises", ".pristine")
RENEWED = ("checks", ".pristine")


def hand_out(handout, work):
    """Copy into the folder ``work`` what it lacks of ``handout``."""
    for source in sorted(one for folder in FOLDERS for one in (handout / folder).rglob("*")):
        place = source.relative_to(handout)
        target = work / place
        is_ours = not target.exists() or set(RENEWED) & set(place.parts)
        if source.is_file() and is_ours:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def main(handout, *arguments):
    """Copy, and become the server."""
    if not Path(handout).is_dir():
        return f"There is no folder {handout}: simlib handout --out {handout} writes it."
    work = Path(os.environ["JUPYTERHUB_ROOT_DIR"]).expanduser()
    hand_out(Path(handout), work)
    os.chdir(work)
    serve = [sys.executable, "-m", "jupyterhub.singleuser", *arguments]
    os.execv(sys.executable, serve)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

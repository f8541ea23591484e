"""``simlib lab``: open the course in JupyterLab.

In a clone the command opens the clone. If the wheel is installed, the command opens the learner's
own copy. JupyterLab gets settings of the course's own, so `~/.jupyter` stays as it is.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

from ...core.environment import GIVEN_COURSE, ROOT, VERSION, need
from ...core.model.errors import InvalidCallError
from . import own_copy

HERE = Path(__file__).resolve().parent
SETTINGS, EXTENSIONS = HERE / "settings", HERE / "extensions"
START_PAGE = "START.md"
NOT_SHOWN = (
    *("README.md", "DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff"),
    *("LICENSE", "Makefile"),
    *("constraints.txt", "environment.yml", "pyproject.toml", "setup.py", "MANIFEST.in"),
    *("conftest.py", "rank_by_rank.py", "*.egg-info", "build", "dist"),
    *("authoring", "benchmarks", "binder", "docs", "hub"),
    *("scripts", "simlib", "solutions", "tests"),
    *("checks", "recorded", "recorded_*"),  # in exercises and notebooks
    *("__pycache__", "*.pyc", "*~", ".DS_Store"),
)
"""What the list of files leaves out: it shows lessons, exercises, the start page, and what learners
put beside them, unless it has one of these names. By a link everything opens, a solution say."""


def add_command(commands: Any) -> None:
    """Add ``lab`` to the subcommands of a parser."""
    parser = commands.add_parser(
        "lab",
        help="open the course in JupyterLab",
        description="Open the course in JupyterLab. The first call copies the course into FOLDER. "
        "A later call renews this copy if you have installed a newer course. Files that you "
        "changed stay as they are: the new file is then written next to yours. In a clone of the "
        "course, call it without FOLDER. It then opens the clone.",
    )
    parser.add_argument("--port", type=int, help="port of the server (the variable PORT, or 8888)")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    parser.add_argument(
        "words",
        nargs="*",
        metavar="FOLDER",
        help="folder of your copy (rank-by-rank). After --, write further arguments of JupyterLab",
    )
    parser.set_defaults(command=_lab)


def _lab(options: Any) -> int:
    need("course", "jupyterlab", what="simlib lab")
    words = options.words
    named = words.pop(0) if words and not words[0].startswith("-") else None
    port = str(options.port) if options.port is not None else os.environ.get("PORT", "")
    try:
        wrong = wrong_port(port)
        if not wrong:
            folder = own_folder(named)
            serve(folder, port, has_display() and not options.no_browser, words)
            return 0
    except OSError as error:
        wrong = f"{error.filename or named}: {error.strerror or error}"
    print(f"simlib: {wrong}", file=sys.stderr)
    return 2


def own_folder(named: str | None) -> Path:
    """The folder to open, with an up-to-date course.

    Raises
    ------
    InvalidCallError
        The folder that was named cannot become a copy, or this install has no course.
    """
    source = next((one for one in (GIVEN_COURSE, ROOT) if (one / START_PAGE).is_file()), None)
    if source is None:
        raise InvalidCallError(
            "simlib was installed here without the course, as a handout installs it: open the "
            "folder of the handout with jupyter lab"
        )
    if named is not None:
        folder = Path(named).resolve()
    elif source == ROOT:
        folder = ROOT
    else:
        is_copy = Path(own_copy.RECORD).exists()
        folder = Path("." if is_copy else "rank-by-rank").resolve()
    if folder == source:
        return folder
    is_new = not folder.exists()
    renewed = own_copy.renew(source, folder)
    if is_new:
        print(f"The course is now in {folder}.")
    elif renewed.written:
        count = len(renewed.written)
        print(f"Copied files of version {VERSION} that were old or missing in {folder}: {count}.")
    for name, new in renewed.beside.items():
        print(f"You changed {name}, so it stays as it is. The new file is next to it: {new}")
    return folder


def own_environment(root: Path) -> dict[str, str]:
    """The variables that keep Jupyter and IPython inside the course's folder."""
    own = root / ".jupyter"
    return {
        "JUPYTER_CONFIG_DIR": str(own / "config"),
        "JUPYTER_DATA_DIR": str(own / "data"),
        "JUPYTER_RUNTIME_DIR": str(own / "runtime"),
        "IPYTHONDIR": str(own / "ipython"),
        "JUPYTER_PREFER_ENV_PATH": "1",
        # Not on the command line, where every user of the machine could read it.
        "JUPYTER_TOKEN": secrets.token_hex(24),
        # So a terminal of JupyterLab finds the command simlib.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }


def settle_in(root: Path) -> None:
    """Make the course's own Jupyter folder and use it."""
    profile = root / ".jupyter" / "ipython" / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    # Kernels on one machine talk by signed messages; that they are not encrypted is no news here.
    (profile / "ipython_kernel_config.py").write_text("get_config().IPKernelApp.log_level = 40\n")
    os.environ.update(own_environment(root))


def has_display() -> bool:
    """Whether a browser can be opened here."""
    if sys.platform == "darwin":
        return "SSH_CONNECTION" not in os.environ
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def wrong_port(port: str) -> str | None:
    """A sentence on a port that cannot be used; or None. Without a port, JupyterLab chooses."""
    if port and not (port.isdecimal() and 0 < int(port) < 65536):
        return f"PORT={port} is not a port: choose a number from 1024 to 65535."
    if port and port_is_taken(int(port)):
        other = f"choose another port, as in --port {int(port) + 1} or PORT={int(port) + 1}"
        return f"Port {port} is in use, perhaps by this course: {other}."
    return None


def port_is_taken(port: int) -> bool:
    """Whether another program listens on this port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def lab_arguments(root: Path, port: str, display: bool, as_root: bool) -> list[str]:
    """The command line of JupyterLab."""
    own = root / ".jupyter"
    arguments = [
        f"--ServerApp.root_dir={root}",
        f"--LabApp.default_url=/lab/tree/{START_PAGE}",
        f"--LabApp.app_settings_dir={SETTINGS}",
        f"--LabApp.extra_labextensions_path={EXTENSIONS}",
        f"--LabApp.user_settings_dir={own / 'settings'}",
        f"--LabApp.workspaces_dir={own / 'workspaces'}",
        "--LabApp.extension_manager=readonly",
        *(f"--ContentsManager.hide_globs={name}" for name in NOT_SHOWN),
        "--ServerApp.answer_yes=True",
        "--Application.log_level=ERROR",
    ]
    # Not a login shell, for /etc/profile would take the environment's commands out of PATH.
    shell = [os.environ.get("SHELL") or shutil.which("bash") or "sh"]
    arguments.append(f"--ServerApp.terminado_settings={ {'shell_command': shell} }")
    if port:
        arguments += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    if not display:
        arguments.append("--ServerApp.open_browser=False")
    if as_root:
        arguments.append("--ServerApp.allow_root=True")
    return arguments


def invitation(server: Any, display: bool) -> str:
    """What a learner reads once the server is there: its address, token included."""
    page = server.local_url.partition("?")[0]
    lines = [
        "Your browser should open. If it does not, open this address:"
        if display
        else "Open this address in a browser:",
        "",
        f"    {page}?token={server.identity_provider.token}",
        "",
    ]
    if not display:
        lines.append(
            "To open it from another computer, first run there:"
            f" ssh -L {server.port}:127.0.0.1:{server.port} this-computer"
        )
    return "\n".join([*lines, "Ctrl-C here stops the course."])


def serve(root: Path, port: str, display: bool, further: list[str]) -> None:
    """Start the server, print its address, serve until Ctrl-C."""
    settle_in(root)
    os.chdir(root)  # where JupyterLab opens a terminal
    print("Starting JupyterLab.", flush=True)
    from jupyterlab.labapp import LabApp  # reads the variables when it is imported

    as_root = hasattr(os, "geteuid") and os.geteuid() == 0
    arguments = lab_arguments(root, port, display, as_root)
    server = LabApp.initialize_server(argv=arguments + further)
    print(invitation(server, display), flush=True)
    server.start()

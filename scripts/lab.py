"""Open the course in JupyterLab, with settings of its own: `~/.jupyter` stays as it is.

PORT=9000 chooses the port; further arguments go to JupyterLab.
"""

import os
import secrets
import socket
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OWN = ROOT / ".jupyter"
SETTINGS = Path(__file__).resolve().parent / "lab_settings"
EXTENSIONS = Path(__file__).resolve().parent / "lab_extensions"
sys.path.insert(0, str(Path(__file__).resolve().parent))
from install import write_checks  # noqa: E402

START_PAGE = "START.md"
NOT_SHOWN = (
    *("README.md", "DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff"),
    *("LICENSE", "Makefile"),
    *("constraints.txt", "environment.yml", "pyproject.toml", "setup.py", "MANIFEST.in"),
    *("conftest.py", "*.egg-info", "build", "dist"),
    *("authoring", "benchmarks", "binder", "docs", "hub"),
    *("scripts", "simlib", "solutions", "tests"),
    *("checks", "recorded", "recorded_*"),  # in exercises and notebooks
    *("__pycache__", "*.pyc", "*~", ".DS_Store"),
)
"""What the list of files leaves out: it shows lessons, exercises, the start page, and what learners
put beside them, unless it has one of these names. By a link everything opens, a solution say."""


def own_environment():
    """The variables that keep Jupyter and IPython inside the course's folder."""
    return {
        "JUPYTER_CONFIG_DIR": str(OWN / "config"),
        "JUPYTER_DATA_DIR": str(OWN / "data"),
        "JUPYTER_RUNTIME_DIR": str(OWN / "runtime"),
        "IPYTHONDIR": str(OWN / "ipython"),
        "JUPYTER_PREFER_ENV_PATH": "1",
        # Not on the command line, where every user of the machine could read it.
        "JUPYTER_TOKEN": secrets.token_hex(24),
    }


def settle_in():
    """Make the course's own Jupyter folder and use it."""
    profile = OWN / "ipython" / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    # Kernels on one machine talk by signed messages; that they are not encrypted is no news here.
    (profile / "ipython_kernel_config.py").write_text("get_config().IPKernelApp.log_level = 40\n")
    os.environ.update(own_environment())


def has_display():
    """Whether a browser can be opened here."""
    if sys.platform == "darwin":
        return "SSH_CONNECTION" not in os.environ
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def port_is_taken(port):
    """Whether another program listens on this port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def lab_arguments(port, display, as_root):
    """The command line of JupyterLab."""
    arguments = [
        f"--ServerApp.root_dir={ROOT}",
        f"--LabApp.default_url=/lab/tree/{START_PAGE}",
        f"--LabApp.app_settings_dir={SETTINGS}",
        f"--LabApp.extra_labextensions_path={EXTENSIONS}",
        f"--LabApp.user_settings_dir={OWN / 'settings'}",
        f"--LabApp.workspaces_dir={OWN / 'workspaces'}",
        "--LabApp.extension_manager=readonly",
        *(f"--ContentsManager.hide_globs={name}" for name in NOT_SHOWN),
        "--ServerApp.answer_yes=True",
        "--Application.log_level=ERROR",
    ]
    if port:
        arguments += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    if not display:
        arguments.append("--ServerApp.open_browser=False")
    if as_root:
        arguments.append("--ServerApp.allow_root=True")
    return arguments


def invitation(server, display):
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


def main(further):
    """Start the server, say where it is, serve until Ctrl-C."""
    port = os.environ.get("PORT", "")
    if port and not (port.isdecimal() and 0 < int(port) < 65536):
        return f"PORT={port} is not a port: choose a number from 1024 to 65535."
    if port and port_is_taken(int(port)):
        return f"Another program uses port {port}: choose another port, as in PORT={int(port) + 1}."
    write_checks()
    settle_in()
    print("Starting JupyterLab.", flush=True)
    from jupyterlab.labapp import LabApp  # reads the variables when it is imported

    as_root = hasattr(os, "geteuid") and os.geteuid() == 0
    display = has_display()
    server = LabApp.initialize_server(argv=lab_arguments(port, display, as_root) + further)
    print(invitation(server, display), flush=True)
    server.start()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A class on one machine. docs/hub.md says how the folder around this file is made.

HUB_TRIAL=folder tries it without accounts: everybody who knows HUB_PASSWORD is let in under any
name, and has a home in that folder; all are the account that the hub runs as.
HUB_HANDOUT names the folder that `simlib handout` wrote, if it is not beside this file's folder.
HUB_TOKEN lets a program start servers and look into them.
"""

import os
import sys
from pathlib import Path

HUB = Path(__file__).resolve().parent
HANDOUT = Path(os.environ.get("HUB_HANDOUT", HUB.parent / "handout"))
TRIAL = os.environ.get("HUB_TRIAL", "")
TOKEN = os.environ.get("HUB_TOKEN", "")
NOT_SHOWN = ("checks", "recorded", "recorded_*", "__pycache__", "*.pyc", "*~")

c = get_config()  # noqa: F821 (JupyterHub gives it to this file)

c.JupyterHub.bind_url = os.environ.get("HUB_URL", "http://127.0.0.1:8000")
c.JupyterHub.concurrent_spawn_limit = 40  # a whole class that logs in at the same moment
c.JupyterHub.cleanup_servers = True

# A student's server: files that are missing are copied first, as the student.
c.Spawner.cmd = [sys.executable, str(HUB / "start_server.py"), str(HANDOUT)]
c.Spawner.notebook_dir = "~/rank-by-rank"
c.Spawner.default_url = "/lab/tree/notebooks/00_start_here.ipynb"
c.Spawner.start_timeout = c.Spawner.http_timeout = 600
c.Spawner.environment = {
    "JUPYTER_PATH": str(HUB / "jupyter"),  # its kernel imports torch while the student reads
    "JUPYTER_PREFER_ENV_PATH": "1",
    "SIMLIB_IDLE_MINUTES": os.environ.get("SIMLIB_IDLE_MINUTES", "10"),
}
c.Spawner.args = [
    *(f"--ContentsManager.hide_globs={name}" for name in NOT_SHOWN),
    "--MappingKernelManager.kernel_info_timeout=300",
    # A kernel that nobody has used for three hours ends, and a server without a kernel.
    "--MappingKernelManager.cull_idle_timeout=10800",
    "--MappingKernelManager.cull_connected=True",  # also where a tab of the browser is still open
    "--ServerApp.shutdown_no_activity_timeout=3600",
    "--LabApp.extension_manager=readonly",
]
if hasattr(os, "geteuid") and os.geteuid() == 0 and TRIAL:
    c.Spawner.args.append("--allow-root")

if TRIAL:
    c.JupyterHub.authenticator_class = "dummy"
    c.DummyAuthenticator.password = os.environ["HUB_PASSWORD"]
    c.Authenticator.allow_all = True
    c.JupyterHub.spawner_class = "simple"
    c.SimpleLocalProcessSpawner.home_dir_template = f"{TRIAL}/{{username}}"
else:
    # Accounts of this machine; those of the group may log in.
    c.JupyterHub.authenticator_class = "pam"
    c.PAMAuthenticator.allowed_groups = {"students", "teachers"}
    c.PAMAuthenticator.admin_groups = {"teachers"}
    if os.path.isdir("/run/systemd/system"):
        # What one student may take at most. At rest it is 0.3 GB, in a lesson 0.75 GB.
        c.JupyterHub.spawner_class = "systemd"
        c.SystemdSpawner.mem_limit = "3G"
        c.SystemdSpawner.cpu_limit = 4.0
        c.SystemdSpawner.isolate_tmp = True
        c.SystemdSpawner.isolate_devices = True
        c.SystemdSpawner.disable_user_sudo = True
        # Threads count, and a simulation of 4,096 ranks has as many.
        c.SystemdSpawner.unit_extra_properties = {"TasksMax": "6000"}
    else:
        # Nothing limits a student here: one who takes all memory takes it from everybody.
        c.JupyterHub.spawner_class = "localprocess"

if TOKEN:
    c.JupyterHub.services = [{"name": "teacher", "api_token": TOKEN}]
    c.JupyterHub.load_roles = [
        {
            "name": "teacher",
            "services": ["teacher"],
            "scopes": ["admin:users", "admin:servers", "access:servers"],
        }
    ]

"""What ``python -m simlib.mpi`` keeps of a script's own words and mistakes."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

from conformance.over_mpi import MPIEXEC

SCRIPT = """
import sys
from datetime import timedelta
import torch.distributed as dist

try:
    dist.init_process_group("mpi", worldsize=2)
except TypeError as error:
    print(error)
dist.init_process_group("mpi", None, timedelta(seconds=7), group_name="here")
print(dist.group.WORLD._timeout)
sys.exit("there is no data folder")
"""


def test_a_script_hears_of_a_wrong_keyword_and_says_why_it_ends(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [MPIEXEC, "-n", "1", sys.executable, "-m", "simlib.mpi", str(script)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2]
    )
    assert done.stdout.splitlines() == [
        "got an unexpected keyword argument 'worldsize'",
        str(timedelta(seconds=7)),
    ], done.stderr
    assert "there is no data folder" in done.stderr
    assert done.returncode == 1

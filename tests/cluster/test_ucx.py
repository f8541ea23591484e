"""When simlib tells UCX how to send."""

import simlib
from simlib.cluster.launch import ucx


def test_only_where_nobody_else_knows_better(tmp_path, monkeypatch):
    monkeypatch.delenv(ucx.SCHEME, raising=False)
    monkeypatch.setattr(ucx, "DEVICES", tmp_path)
    assert ucx.settings() == {ucx.SCHEME: "am"}
    assert simlib.Mpiexec().environ()[ucx.SCHEME] == "am"
    monkeypatch.setenv(ucx.SCHEME, "auto")
    assert ucx.settings() == {}
    monkeypatch.delenv(ucx.SCHEME)
    (tmp_path / "mlx5_0").mkdir()  # InfiniBand
    assert ucx.settings() == {}
    assert ucx.SCHEME not in simlib.Mpiexec().environ()

"""When simlib tells UCX how to send."""

import simlib
from simlib.cluster import launchers


def test_only_where_nobody_else_knows_better(tmp_path, monkeypatch):
    monkeypatch.delenv(launchers.SCHEME, raising=False)
    monkeypatch.setattr(launchers, "DEVICES", tmp_path)
    assert launchers.ucx_settings() == {launchers.SCHEME: "am"}
    assert simlib.Mpiexec().environ()[launchers.SCHEME] == "am"
    monkeypatch.setenv(launchers.SCHEME, "auto")
    assert launchers.ucx_settings() == {}
    monkeypatch.delenv(launchers.SCHEME)
    (tmp_path / "mlx5_0").mkdir()  # InfiniBand
    assert launchers.ucx_settings() == {}
    assert launchers.SCHEME not in simlib.Mpiexec().environ()

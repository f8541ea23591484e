"""`try_wheel.py`: the wheel alone is enough, and holds no solutions."""

import zipfile

import pytest
import try_wheel


def wheel_with(path, text):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("simlib/classroom/checks/given/02_send_and_recv.py", text)
    return path


def test_a_wheel_with_a_solution_is_refused(tmp_path):
    try_wheel.no_solutions_in(wheel_with(tmp_path / "a.whl", "# %% 02.1 running_total\n"))
    wrong = wheel_with(tmp_path / "b.whl", "### BEGIN SOLUTION\nx\n### END SOLUTION\n")
    with pytest.raises(
        try_wheel.Failed, match="02_send_and_recv.py in the wheel contains a solution"
    ):
        try_wheel.no_solutions_in(wrong)


@pytest.mark.slow
def test_the_wheel_alone_is_all_that_a_notebook_needs(tmp_path, capsys):
    code = try_wheel.main([str(tmp_path / "wheel")])
    if code == try_wheel.UNTRIED:
        pytest.skip("pip could not install it: is there a network?")
    assert code == 0, capsys.readouterr().out

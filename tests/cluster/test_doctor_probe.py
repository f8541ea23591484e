"""What the doctor's probe does on a host where something is in its way."""

import json
import sys

import pytest

from simlib.cluster.doctor import checks, facts, probe


def test_a_link_that_somebody_has_left_in_the_common_folder_is_not_followed(tmp_path):
    (tmp_path / "question").write_text("token")
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "answer-0").symlink_to(precious)
    assert probe.exchange(str(tmp_path), "token", "answer-0") == [False, "File exists"]
    assert precious.read_text() == "mine"
    assert probe.exchange(str(tmp_path), "token", "answer-1") == [True, None]


def test_sources_that_cannot_be_read_are_no_fault_of_ssh(tmp_path, monkeypatch):
    package = tmp_path / "simlib"
    (package / "core").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "core" / "environment.py").write_text('VERSION = "1.2"')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "simlib")
    version, folder, _ = probe.simlib()
    assert (version, folder) == ("1.2", str(package))
    (package / "other.py").symlink_to("nowhere")
    theirs = probe.simlib()
    assert theirs == [None, str(package), "No such file or directory"]
    here = facts.Facts(["a"], here={"simlib": ["1.2", "x", "y"]}, of={"a": {"simlib": theirs}})
    verdict = checks.simlib(here, "a")
    assert not verdict.ok and "cannot be read there (No such file or directory)" in verdict.sentence


def test_an_answer_that_is_cut_off(monkeypatch):
    answer = probe.MARK + json.dumps([1.5, 2])[:-2]
    words = [sys.executable, "-c", f"import sys; sys.stdin.readline(); print({answer!r}, end='')"]
    monkeypatch.setattr(facts, "command_of", lambda host: words)
    with pytest.raises(facts.NoAnswer, match="ended in the midst of an answer"):
        facts.Dialog("a")

"""Hostfiles, in the form of any MPI: read right, or refused by a sentence that names the line."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simlib
from simlib.cluster.launchers import hosts_in

FORMS = {
    "node1\nnode2\n": [("node1", None), ("node2", None)],
    "node1:2\nnode2": [("node1", 2), ("node2", None)],
    "node1 slots=2\nnode2 slots=1 max_slots=4\n": [("node1", 2), ("node2", 1)],
    "node1  max-slots=4 slots = 2": [("node1", 2)],
    "node1\r\nnode2:3\r\n": [("node1", None), ("node2", 3)],
    "# all of them\n\n  node1 # the first\n\t\nnode2:2#x\n": [("node1", None), ("node2", 2)],
    "\ufeffnode1\n": [("node1", None)],
    "10.0.0.1:2\nme@a.example.org": [("10.0.0.1", 2), ("me@a.example.org", None)],
    "node1\nnode2\nnode1\n": [("node1", 2), ("node2", None)],
    "node1:2\nnode1 slots=3\n": [("node1", 5)],
}


@pytest.mark.parametrize("text", FORMS)
def test_what_a_hostfile_says(tmp_path, text):
    (tmp_path / "hosts").write_bytes(text.encode())
    assert hosts_in(tmp_path / "hosts") == FORMS[text]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no host"),
        ("\n# nothing\n\r\n", "names no host"),
        ("node1\nnode2 node3\n", "line 2 of {path} has 'node3' after the host node2"),
        ("node1,node2", "line 1 of {path} has ',node2' after the host node1"),
        ("\nnode1:two", "line 2 of {path} gives a host 'two' ranks"),
        ("node1:", "line 1 of {path} gives a host '' ranks"),
        ("node1:0", "line 1 of {path} gives a host '0' ranks"),
        ("node1 slots=-1", "line 1 of {path} gives a host '-1' ranks"),
        ("node1:2 slots=2", "line 1 of {path} says twice"),
        ("node1 slot=2", "line 1 of {path} has 'slot=2' after the host node1"),
        ("=2", "line 1 of {path} begins with no host's name"),
        ("--help", "line 1 of {path} begins with no host's name"),
    ],
)
def test_what_is_wrong_with_a_hostfile(tmp_path, text, words):
    path = tmp_path / "hosts"
    path.write_bytes(text.encode())
    with pytest.raises(simlib.InvalidCallError) as caught:
        simlib.Mpiexec(hostfile=str(path))
    assert words.format(path=path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_hostfile(tmp_path):
    for path, words in (
        (tmp_path / "none", "No such file"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(simlib.InvalidCallError, match=f"cannot be read .{words}"):
            simlib.Mpiexec(hostfile=str(path))
    (tmp_path / "hosts").write_bytes(b"\xff\xfe\x00n")
    with pytest.raises(simlib.InvalidCallError, match="is no text"):
        simlib.Mpiexec(hostfile=str(tmp_path / "hosts"))


@pytest.mark.parametrize("name", ["", " ", "a b", "a,b", "node1:2", "-x", None, 3])
def test_what_is_no_host(name):
    with pytest.raises(simlib.InvalidCallError, match=r"hosts\[1\] is .*which is no host's name"):
        simlib.Mpiexec(hosts=["node1", name])


def test_ranks_have_to_fit(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("node1:2\nnode2\n")
    to = simlib.Mpiexec(hostfile=str(path))
    to.check(3)
    with pytest.raises(simlib.InvalidCallError) as caught:
        to.check(4)
    words = f"world_size=4 does not fit on the hosts in {path} (node1:2, node2:1)"
    assert words in str(caught.value)
    simlib.Mpiexec(hostfile=str(path), ranks_per_node=3).check(6)  # overrules the file
    with pytest.raises(simlib.InvalidCallError, match="world_size=1 does not fit on 0 hosts"):
        simlib.Mpiexec(hosts=[]).check(1)


def test_later_attempts_do_not_read_the_file_again(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("node1:2\n")
    to = simlib.Mpiexec(hostfile=str(path))
    path.unlink()
    assert pickle.loads(pickle.dumps(to)).slots == (("node1", 2),)


NAMES = st.from_regex(r"[a-z][a-z0-9.-]{0,8}", fullmatch=True)
ENDS = st.sampled_from(["\n", "\r\n", "  \n", " # a comment\n", "\n\n"])
WAYS = st.sampled_from(["{0}:{1}", "{0} slots={1}", "  {0}\tslots = {1}", "{0}:{1} max_slots=99"])


@given(
    st.lists(st.tuples(NAMES, st.integers(1, 99), WAYS, ENDS), min_size=1, unique_by=lambda x: x[0])
)
def test_every_way_to_write_hosts_is_read(tmp_path_factory, lines):
    path = tmp_path_factory.getbasetemp() / "hosts-of-any-form"
    path.write_bytes("".join(w.format(name, n) + end for name, n, w, end in lines).encode())
    assert hosts_in(path) == [(name, count) for name, count, *_ in lines]


@given(st.text())
def test_any_text_is_read_or_refused_in_a_sentence(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "hosts-of-any-text"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        found = hosts_in(path)
    except simlib.InvalidCallError as error:
        assert "\n" not in str(error)
    else:
        assert found and all(name for name, _ in found)

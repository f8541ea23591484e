"""The doctor's judgement on answers of hosts; this machine alone; what it prints. No cluster.

What it says about hosts that are broken for real is in test_doctor_hosts.
"""

import copy
import functools
import json
import operator
import re
import signal
import subprocess
import sys

import pytest
from terminals import Terminal

import simlib
from simlib.cli import main
from simlib.cluster.doctor import Line, Report, checks, examine, hosts_for_hello, pairs_of, probe
from simlib.cluster.doctor import facts as asking
from simlib.cluster.doctor.facts import Facts

MPICH = "HYDRA build details:\n    Version:          5.0.2\n"
FACTS = {
    "name": "a",
    "account": ["learner", 1000],
    "python": "3.11.7",
    "executable": "/env/bin/python",
    "packages": {"torch": "2.13.0+cpu", "mpi4py": "4.1.2"},
    "simlib": ["0.1.0", "/course/simlib", "d1"],
    "mpi": {"version": [0, MPICH], "proxy": True, "other": "/env/bin/mpiexec"},
    "library": [0, "MPICH Version:      5.0.2\n"],
    "file": [True, None],
    "names": {"a": ["10.0.0.1"], "b": ["10.0.0.2"]},
    "address": ["10.0.0.1", "eth0", "10.0.0.9"],
}
STEPS = [
    *({"step": "began", "host": host} for host in "ab"),
    *({"step": "joined", "rank": rank, "size": 2} for rank in range(2)),
    *({"step": "met", "rank": rank, "total": 3} for rank in range(2)),
    {"step": "pair", "pair": [0, 1], "latency_s": 5e-5, "bandwidth_Bps": 1e8},
]


@pytest.fixture
def facts():
    """Two hosts on which all is well."""
    of = {host: copy.deepcopy(FACTS) for host in "ab"}
    of["b"].update(name="b", address=["10.0.0.2", "eth0", "10.0.0.9"])
    return Facts(
        hosts=["a", "b"], folder="/course", here=copy.deepcopy(FACTS), of=of,
        clocks={"a": (0.0001, 0.0002), "b": (-0.3, 0.0002)}, written={"a", "b"},
        unreached={None: {}, "a": {}, "b": {}}, mpiexec="/env/bin/mpiexec", mpi="MPICH",
        together={"hosts": ["a", "b"], "wanted": 2, "steps": list(STEPS), "said": "", "code": 0},
    )  # fmt: skip


def not_ok(facts):
    """``{(check, host): (state, sentence)}`` of all that is not well."""
    lines = examine(facts)
    return {(ln.check, ln.host): (ln.state, ln.sentence) for ln in lines if ln.state != "ok"}


def test_all_is_well(facts):
    """Also builds of one torch, and clocks within the error of asking."""
    facts.of["b"]["packages"]["torch"] = "2.13.0"
    facts.clocks["b"] = (0.8, 0.5)
    assert not not_ok(facts)
    assert hosts_for_hello(facts) == ["a", "b"]
    assert pairs_of(facts) == (("a", "b", 5e-5, 1e8),)


def alter(path, value):
    """A change of one answer of b."""

    def change(facts):
        *parents, last = path
        functools.reduce(operator.getitem, parents, facts.of["b"])[last] = value

    return change


ONE_FAULT = {
    "account name": (
        alter(["account"], ["pupil", 1000]), "account",
        r"pupil with uid 1000, but here it is learner with uid 1000: .* name it in ~/.ssh/config",
    ),
    "account uid": (alter(["account"], ["learner", 1001]), "account", "uid 1001, .*usermod -u"),
    "python path": (
        alter(["executable"], "/usr/bin/python3"), "python",
        r"/env/bin/python is not there, only /usr/bin/python3 with Python 3.11.7: install the same",
    ),
    "python version": (alter(["python"], "3.12.1"), "python", "Python 3.12.1 there and 3.11.7 "),
    "torch version": (
        alter(["packages", "torch"], "2.12.0"), "torch", "is 2.12.0, .* torch==2.13.0 there"
    ),
    "torch missing": (alter(["packages", "torch"], None), "torch", "missing: install 2.13.0"),
    "another simlib": (alter(["other_simlib"], "/env contains simlib 3"), "simlib", "simlib 3"),
    "simlib version": (alter(["simlib", 0], "0.0.9"), "simlib", "is 0.0.9 .*but 0.1.0 here: inst"),
    "simlib files": (alter(["simlib", 2], "d2"), "simlib", "differ from those here: copy"),
    "mpi missing": (
        alter(["mpi"], {"version": None, "proxy": False, "other": "/usr/bin/mpiexec"}), "mpi",
        r"no mpiexec at /env/bin/mpiexec \(another is at /usr/bin/mpiexec\): install the same",
    ),
    "mpi version": (
        alter(["mpi", "version"], [0, MPICH.replace("5.0.2", "4.0.2")]), "mpi",
        "the MPI there is MPICH 4.0.2, but MPICH 5.0.2 here: install the same",
    ),
    "other mpi": (
        alter(["mpi", "version"], [0, "mpiexec (Open MPI) 5.0.11"]), "mpi",
        "the MPI there is Open MPI 5.0.11, but MPICH 5.0.2 here",
    ),
    "no proxy": (alter(["mpi", "proxy"], False), "mpi", "hydra_pmi_proxy is missing: install"),
    "mpi4py on another mpi": (
        alter(["library"], [0, "Open MPI v5.0.11, package: ..."]), "mpi4py",
        r"library is Open MPI, but mpiexec is MPICH, .*use the mpiexec of Open MPI \(--launcher\)",
    ),
    "mpi4py without mpi": (
        alter(["library"], [1, "RuntimeError: cannot load MPI library"]), "mpi4py",
        "finds no MPI library \\(.*cannot load.*\\): install MPICH on this host",
    ),
    "no rights": (alter(["file"], [False, "Permission denied"]), "files", "no right to read"),
    "no folder": (alter(["file"], [False, "No such file"]), "files", "the host does not see"),
    "another folder": (alter(["file"], [False, None]), "files", "the host does not see .*: mount"),
    "not seen here": (lambda facts: facts.written.remove("b"), "files", "that the host wrote"),
    "127.0.1.1": (
        alter(["names", "b"], ["127.0.1.1"]), "address",
        "b stands for 127.0.1.1 there, .* write 10.0.0.2 instead of .*GLOO_SOCKET_IFNAME=eth0",
    ),
    "a name unknown there": (alter(["names", "a"], None), "address", "know the name a: add"),
    "clock": (
        lambda facts: facts.clocks.update(b=(-2.5, 0.1)), "clock", "2.5 s behind this .*chrony"
    ),
    "ports": (
        lambda facts: facts.unreached.update(b={"a": "no answer"}), "ports",
        r"free port failed \(to a: no answer\): let the firewalls pass",
    ),
    "ports of this machine": (
        lambda facts: facts.unreached.update(b={"": "refused"}), "ports", "to this machine .*: ref"
    ),
    "ports from this machine": (
        lambda facts: facts.unreached.update({None: {"b": "no answer"}}), "ports",
        "from this machine .*: no answer",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", ONE_FAULT)
def test_one_fault_is_one_line(facts, fault):
    change, check, words = ONE_FAULT[fault]
    change(facts)
    found = {key: value for key, value in not_ok(facts).items() if value[0] == "wrong"}
    assert list(found) == [(check, "b")]
    state, sentence = found[check, "b"]
    assert re.search(words, sentence), sentence


@pytest.mark.parametrize(
    ("said", "check", "words"),
    [
        ("ssh: Could not resolve hostname b: Name or service not known", "name", "spell the name"),
        ("ssh: connect to host b port 22: Connection refused", "server", "start sshd on"),
        ("ssh: connect to host b port 22: Connection timed out", "server", "is it switched on"),
        ("no answer to 'clock' for 15 s", "server", "overloaded"),
        ("learner@b: Permission denied (publickey).", "ssh", "ssh-copy-id b"),
        ("Host key verification failed.", "ssh", "run `ssh b` once by hand and compare its key"),
        ("kex_exchange_identification: reset", "ssh", "run `ssh b true` by hand .*kex_exchange"),
        (asking.NO_PYTHON, "python", "the host has no Python: install Python"),
    ],
)
def test_what_ssh_says(facts, said, check, words):
    """Everything after the fault is not asked, for its sake; the other host is."""
    del facts.of["b"], facts.clocks["b"]
    facts.refused["b"], facts.together = said, None
    found = not_ok(facts)
    (fault,) = [key for key, (state, _) in found.items() if state == "wrong"]
    assert fault == (check, "b") and re.search(words, found[fault][1]), found[fault]
    after = {value for key, value in found.items() if key[1] == "b" and key != fault}
    assert after == {("not asked", f"because the check {check} failed there")}
    assert found["hello", None] == ("not asked", f"because the check {check} failed on b")
    assert not [key for key in found if key[1] == "a"]
    assert hosts_for_hello(facts) is None


def test_a_host_of_three_that_is_out_does_not_keep_the_others_from_the_hello(facts):
    facts.hosts.append("c")
    facts.refused["c"] = "ssh: connect to host c port 22: Connection refused"
    assert hosts_for_hello(facts) == ["a", "b"]
    assert "hello" not in {check for check, _ in not_ok(facts)}


HELLOS = {
    "alone": (
        [{**step, "size": 1} if step["step"] == "joined" else step for step in STEPS[:4]], 0, "",
        r"each process says that its world size is 1, not 2: .* \(--launcher\)",
    ),
    "hangs before MPI is up": (STEPS[:2], None, "", "hangs: 2 ranks started, 0 fin.* firewalls"),
    "hangs in the sum": (STEPS[:4], None, "", "the test hangs: 2 ranks started, 0 finished in"),
    "a launcher's words": (
        [], 255, "bash: /env/bin/hydra_pmi_proxy: No such file or directory",
        "0 of 2 ranks finished: a host has no MPI",
    ),
    "words that nobody knows": (STEPS[:1], 1, "oh\n", r"run the same mpiexec by hand .* \(oh\)"),
    "no words": ([], 3, "", r"\(exit code 3 and no output\)"),
    "a rank that did not begin": (STEPS[:1], None, "", "0 of 2 ranks finished"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HELLOS)
def test_how_a_hello_fails(facts, kind):
    steps, code, said, words = HELLOS[kind]
    facts.together.update(steps=steps, code=code, said=said)
    found = not_ok(facts)
    assert found["hello", None][0] == "wrong"
    assert re.search(words, found["hello", None][1]), found["hello", None][1]
    assert found["ping-pong", None] == ("not asked", "because the check hello failed")
    facts.together.update(steps=STEPS[:6], code=None)
    ((key, (state, sentence)),) = not_ok(facts).items()
    assert key == ("ping-pong", None) and state == "wrong" and "a wrong MTU" in sentence


def test_every_need_is_a_check_before_it():
    names = [check.name for check in checks.HOST_CHECKS]
    for place, check in enumerate(checks.HOST_CHECKS):
        assert set(check.needs) <= set(names[:place])


# What it prints


def test_report(facts):
    facts.of["b"]["packages"]["torch"] = None
    facts.refused, facts.clocks["a"] = {}, (3.0, 0.1)
    report = Report(("a", "b"), tuple(examine(facts)), pairs_of(facts))
    lines = str(report).splitlines()
    assert lines[0] == "a cluster of a, b" and lines[-1] == "2 things are wrong"
    assert "ok         account    a, b: learner, uid 1000" in lines
    assert "ok         address    a: 10.0.0.1 by eth0; b: 10.0.0.2 by eth0" in lines
    assert "wrong      torch      b: torch is missing: install 2.13.0+cpu there" in str(report)
    assert re.search(r"\na - b +50.0 us +100.0 MB/s\n", str(report))
    assert not report.ok and [line.check for line in report.wrong()] == ["torch", "clock"]


def test_html_says_the_same(facts):
    said = "<b> & more"
    report = Report(("a", "b"), (Line("name", "a", "wrong", said),), pairs_of(facts))
    page = report._repr_html_()
    assert "a: &lt;b&gt; &amp; more" in page and "50.0 us" in page and said not in page


# This machine alone, for real


def test_this_machine_alone(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    screen = Terminal(monkeypatch)
    code = main(["doctor"])
    screen.hang_up()
    assert re.search(r"00:\d\d, simlib asks each host.*runs under mpiexec.* \r$", screen.getvalue())
    out = capfd.readouterr().out
    assert code == 0, out
    assert out.startswith("this machine alone: no hosts were given (--hosts a,b")
    assert re.search(r"\nok +hello +2 ranks on this machine, world size 2\n", out)
    assert re.search(r"\nok +ping-pong +[\d.e+]+ us one way, [\d.e+]+ MB/s\n", out)
    assert out.endswith("all is well\n") and not list(tmp_path.iterdir())


def test_no_mpiexec_here(capfd, tmp_path):
    assert main(["doctor", "--launcher", "no-such-mpiexec", "--folder", str(tmp_path)]) == 1
    out = capfd.readouterr().out
    assert re.search(r"\nwrong +mpi +there is no command 'no-such-mpiexec'", out)
    assert re.search(r"\nnot asked +hello +because the check mpi failed", out)
    assert re.search(r"\nok +torch ", out)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--hosts", ""], "'' is not a host name"),
        (["--hosts", "a,-oProxyCommand=x"], "'-oProxyCommand=x' is not a host name"),
        (["--hosts", "a,a"], "each only once"),
        (["--folder", "/no/such/folder"], "is not a folder that you can write to"),
    ],
)
def test_wrong_calls(argv, words, capsys):
    assert main(["doctor", *argv]) == 2
    assert words in capsys.readouterr().err


def test_hosts_as_text():
    with pytest.raises(simlib.InvalidCallError, match=r"must be a list: hosts=\['a'\]"):
        simlib.doctor("a")


# Its parts


def test_words_of_a_login_script_are_no_answers(monkeypatch):
    noisy = f"print('welcome', flush=True); {asking.BOOT}"
    monkeypatch.setattr(asking, "command_of", lambda host: [sys.executable, "-c", noisy])
    talk = asking.Dialog("a")
    try:
        assert talk.ask("listen") > 0
    finally:
        talk.close()


ANSWER = probe.MARK + json.dumps([1.5, 2])[:-2]
CUT_OFF = f"import sys; sys.stdin.readline(); print({ANSWER!r}, end='')"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["sh", "-c", "echo no way >&2; exit 255"], "no way"),
        (["no-such-ssh"], "no-such-ssh"),
        ([sys.executable, "-c", CUT_OFF], "ended in the middle of an answer"),
    ],
)
def test_what_is_said_instead_of_an_answer(monkeypatch, words, told):
    monkeypatch.setattr(asking, "command_of", lambda host: words)
    with pytest.raises(asking.NoAnswer, match=told):
        asking.Dialog("a")


def test_a_host_that_never_answers_is_given_up_and_its_ssh_ended(monkeypatch):
    monkeypatch.setattr(asking, "command_of", lambda host: ["sleep", "1000"])
    monkeypatch.setattr(asking, "FIRST_ANSWER_S", 0.01)
    started = []
    popen = subprocess.Popen
    monkeypatch.setattr(
        asking.subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[0]
    )
    with pytest.raises(asking.NoAnswer, match="no answer to 'clock' for 0.01 s"):
        asking.Dialog("a")
    assert started[0].returncode == -signal.SIGKILL


def test_a_launcher_that_hangs_is_ended_and_what_was_told_is_kept(monkeypatch):
    class Launcher:
        def command(self, world_size, program):
            told = '{"step": "began", "host": "a"}'
            return ["sh", "-c", f"trap '' TERM; echo '{told}'; echo words; exec sleep 100"]

        def environ(self):
            return {}

    monkeypatch.setattr(asking, "LIMIT_S", 2)
    monkeypatch.setattr(asking, "LEAVE_S", 0.1)
    answer = asking.run_together(Launcher(), ["a", "b"])
    assert answer["steps"] == [{"step": "began", "host": "a"}]
    assert answer["code"] is None and answer["said"] == "words"


def test_the_probe_needs_the_standard_library_only():
    """A host without torch, simlib and mpi4py can still answer."""
    program = open(probe.__file__).read() + "\n"
    question = '["facts", {"root": "/", "mpiexec": null, "folder": "/no", "token": "t", '
    question += '"reply": "r", "names": ["localhost"]}]\n'
    done = subprocess.run(
        [sys.executable, "-S", "-I", "-c", program], input=question, capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert '"torch": null' in done.stdout and '"simlib": null' in done.stdout
    assert '"file": [false, "No such file or directory"]' in done.stdout


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
    here = Facts(["a"], here={"simlib": ["1.2", "x", "y"]}, of={"a": {"simlib": theirs}})
    verdict = checks.simlib(here, "a")
    assert not verdict.ok and "cannot be read there (No such file or directory)" in verdict.sentence

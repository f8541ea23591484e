"""The pytest plugin: ``@pytest.mark.ranks(1, 2, 4)``, and the fixture ``ranks``.

::

    @pytest.mark.ranks(1, 2, 4)
    def test_sum(rank, world_size):
        x = torch.tensor([float(rank)])
        dist.all_reduce(x)
        assert x.item() == sum(range(world_size))

    def test_traffic(ranks):
        run = ranks(my_all_reduce, 4)
        assert max(run.bytes_sent) <= 6_000

pytest loads this module in every project if simlib is installed. It costs nothing until a test asks
for ranks.
"""

from __future__ import annotations

import sys

import pytest

from ..core.model.errors import InvalidCallError, SimlibError
from . import SEED, asked_by

MARK = "ranks"
HELP = (
    'ranks(n, ..., engine="run", seeds=(), **options): run the test on n ranks, once for each n; '
    'engine="simulate" simulates the ranks, and seeds=range(20) repeats this in 20 orders of their '
    "calls; options are options of simlib.run or simlib.simulate (timeout_s=, strict=False, ...)"
)
_STARTED = pytest.StashKey[bool]()
_PARAMETERS = ("world_size", SEED, "rank")


def pytest_configure(config):
    config.addinivalue_line("markers", HELP)


def pytest_generate_tests(metafunc):
    """Make one case for each world size and each seed that the mark names."""
    mark = metafunc.definition.get_closest_marker(MARK)
    if mark is None:
        return
    if hasattr(metafunc.function, "hypothesis"):
        pytest.fail(
            f"{metafunc.function.__name__}: each rank would draw its own examples: draw them in a "
            "test without the mark ranks, and give them to the fixture ranks",
            pytrace=False,
        )
    cases, wrong = [], None
    try:
        cases = asked_by(mark).cases()
    except InvalidCallError as error:
        wrong = error
    if wrong is not None:
        pytest.fail(f"{metafunc.function.__name__}: {wrong}", pytrace=False)
    # Ranks fill in these arguments themselves, if the test names them.
    metafunc.fixturenames.extend(n for n in _PARAMETERS if n not in metafunc.fixturenames)
    metafunc.parametrize(
        _PARAMETERS, [(*case, None) for case, _ in cases], ids=[name for _, name in cases]
    )


def pytest_collection_finish(session):
    """Start the server of ranks if a test needs it. Refuse a debugger that cannot stop on ranks."""
    marked = [item for item in session.items if item.get_closest_marker(MARK)]
    debugs = session.config.getoption("usepdb") or session.config.getoption("trace")
    if marked and debugs:
        raise pytest.UsageError(
            "a debugger cannot stop in a rank, which is a process without a keyboard: run pytest "
            "without --pdb and --trace (a report shows the lines and values of each rank), or "
            "with "
            f'-m "not ranks", which skips {marked[0].name} and all other tests marked ranks'
        )
    given = any(MARK in getattr(item, "fixturenames", ()) for item in session.items)
    if (marked or given) and not session.config.getoption("collectonly"):
        from ..core.engines.workers.server import start_server

        start_server(also=("simlib.testing.on_rank",))
        session.config.stash[_STARTED] = True


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a marked test on ranks."""
    __tracebackhide__ = True
    mark = pyfuncitem.get_closest_marker(MARK)
    if mark is None:
        return None
    from .ranks import run_test

    case = pyfuncitem.callspec.params
    run_test(pyfuncitem, asked_by(mark), case["world_size"], case[SEED])
    return True


def pytest_runtest_setup(item):
    """Refuse a mark from which pytest makes no cases. Such a test would not run on ranks."""
    case = getattr(item, "callspec", None)
    if item.get_closest_marker(MARK) and (case is None or SEED not in case.params):
        pytest.fail(
            f"{item.name} is marked ranks, but is not a test function of pytest: write it as a "
            "function, or a method of a plain class, with the arguments rank and world_size",
            pytrace=False,
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Put the ranks' errors, without simlib's frames, into the report of a test that ran on
    ranks."""
    report = yield
    if (
        call.when == "call"
        and report.failed
        and item.get_closest_marker(MARK)
        and isinstance(call.excinfo.value, SimlibError)
    ):
        report.longrepr = call.excinfo.getrepr(style="value")
        if report.longrepr.reprcrash is not None:  # the line of the summary
            report.longrepr.reprcrash.message = str(call.excinfo.value)
    return report


@pytest.fixture(scope="session")
def ranks(pytestconfig):
    """``ranks(function, 4)``: run a function on ranks, and get its `simlib.Run`."""
    from .ranks import Ranks

    return Ranks(pytestconfig)


def pytest_sessionfinish(session):
    """End all ranks and the server of ranks."""
    used = sys.modules.get("simlib.testing.ranks")
    if used is not None:
        used.close()
    if session.config.stash.get(_STARTED, False):
        from ..core.engines.workers.server import stop_server

        stop_server()

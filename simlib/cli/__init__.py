"""The command line: ``python -m simlib run -n 4 script.py [args]``, and all other commands.

Each command returns an `ExitCode`, an `Outcome`, or a number. A command imports its modules when it
is called. So a wrong call does not wait for torch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path
from pkgutil import resolve_name

from .. import _ctrl_c, classroom, cluster, course
from ..core.environment import VERSION, MissingExtra
from ..core.model.errors import InvalidCallError
from ..core.model.outcome import ExitCode, Outcome

COMMANDS = ("scripts:add_commands", "records:add_commands")
"""Functions that add commands to the parser. Each of `PARTS` has a list of its own."""
PARTS = (cluster, classroom, course)


def main(argv=None):
    """Run a command; returns the exit code. Its kinds are in `ExitCode`."""
    parser = _parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks how the line could go on
        import argcomplete

        argcomplete.autocomplete(parser)
    options = parser.parse_args(argv)
    if not options.imports_first:
        _ctrl_c.is_raised()
    if not getattr(options, "json", False):
        return _outcome(options).code
    with contextlib.redirect_stdout(sys.stderr):
        done = _outcome(options)
    told = {"kind": done.kind, "message": done.message} | done.facts
    about = {"simlib": VERSION, "command": options.subcommand}
    ended = {"exit_code": done.code, "exit": ExitCode(done.code).name}
    print(json.dumps(about | ended | told, indent=1, allow_nan=False))
    return done.code


def _outcome(options):
    """Run the command that a call names. Returns an `Outcome`."""
    try:
        done = options.command(options)
        return done if isinstance(done, Outcome) else Outcome(done)
    except (MissingExtra, InvalidCallError) as error:
        print(f"simlib: {error}", file=sys.stderr)
        return Outcome(ExitCode.USAGE, "usage", str(error))
    except KeyboardInterrupt:
        print(_ctrl_c.WORDS, file=sys.stderr)
        return Outcome(ExitCode.INTERRUPTED, "interrupted", _ctrl_c.WORDS)
    except BrokenPipeError:  # whoever read our output, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Outcome(1)
    finally:
        _ctrl_c.ends_at_once()


class _Command(argparse.ArgumentParser):
    """A command that refuses unknown options itself, with its own usage."""

    def parse_known_args(self, args=None, namespace=None):
        """As in argparse, but no argument may be left over."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, []


def _parser():
    name = "rank-by-rank" if Path(sys.argv[0]).stem == "rank-by-rank" else "simlib"
    parser = argparse.ArgumentParser(prog=name, description="One program on many ranks.")
    parser.add_argument("--version", action="version", version=f"{name} {VERSION}")
    commands = parser.add_subparsers(
        dest="subcommand", required=True, metavar="command", parser_class=_Command
    )
    parser.set_defaults(imports_first=False)
    for part in (sys.modules[__name__], *PARTS):
        for name in part.COMMANDS:
            resolve_name(f"{part.__name__}.{name}")(commands)
    return parser

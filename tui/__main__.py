"""`python -m tui`: the `livepath` command.

Contract: a failure is one line on stderr and one with the next step, never a traceback (LIVEPATH_DEBUG=1 shows it).
Exit codes: 0 done, 1 failed, 2 usage, 130 stopped. What a verdict says never changes the exit code, except that of
`judge`, whose failures all end with 128 or more: `git bisect run` takes 1 to 127 for a judgement.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import click

from store.errors import LivepathError
from tui.text.clean import clean

PROGRAM = "livepath"


def main(words: Sequence[str] | None = None, session: object = None) -> int:
    """Carry out one command and return its exit code."""
    words = sys.argv[1:] if words is None else list(words)
    least = 128 if _judges(words) else 0
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character shows its escape instead of ending the program.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        from tui.cli.root import livepath

        code = livepath.main(args=words, prog_name=PROGRAM, standalone_mode=False, obj=session)
        sys.stdout.flush()
        return code if type(code) is int else 0
    except BrokenPipeError:
        # The reader went away (`livepath report | head`). Python flushes stdout once more at exit: give it somewhere
        # to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return max(least, 1)
    except (KeyboardInterrupt, click.Abort) as error:
        return _fail(error, "stopped", "start again to go on; what was finished is kept", 130)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.UsageError as error:
        verb = error.ctx.command_path if error.ctx else PROGRAM
        return _fail(error, error.format_message(), f"`{verb} --help` shows how it is written", max(least, 2))
    except click.ClickException as error:
        return _fail(error, error.format_message(), "", max(least, error.exit_code))
    except LivepathError as error:
        return _fail(error, error.message, error.hint, max(least, error.exit_code))
    except Exception as error:
        text = f"a fault in Livepath itself: {type(error).__name__}: {error}"
        return _fail(error, text, "LIVEPATH_DEBUG=1 shows where; please report it", max(least, 1))


def _judges(words: Sequence[str]) -> bool:
    """Whether these words are for `judge`, however wrong they are."""
    return bool(words) and (words[0] == "judge" or (words[0].startswith("-") and "judge" in words))


def _fail(error: BaseException, message: str, hint: str, code: int) -> int:
    if os.environ.get("LIVEPATH_DEBUG"):
        if code < 128:
            raise error
        traceback.print_exception(error)  # Python would end with 1
    for label, text in (("error", message), ("hint", hint)):
        if text:
            print(f"{label}: {clean(' '.join(text.split()))}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())

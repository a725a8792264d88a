from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lab.ending import End, meaning
from lab.events import Events, Progress
from lab.git import Git
from lab.record import Record
from lab.runner import RunResult, RunSpec, argv_of, environment, execute, paste
from lab.target import Target
from lab.worktree import WorktreePool
from store.errors import RunError
from tests.lab.conftest import Repo, living

MakeTarget = Callable[..., Target]
MakeSpec = Callable[..., RunSpec]

SAY = """\
import json, os
def say(**event):
    with open(os.environ["LIVEPATH_EVENTS"], "a") as file:
        file.write(json.dumps({"v": 1, **event}) + "\\n")
"""
PKG = {"pkg/__init__.py": "", "pkg/say.py": SAY}


def run(make: MakeTarget, spec_of: MakeSpec, body: str, **settings: object) -> RunResult:
    """Run a script of the package `pkg` as `python3 -m pkg.probe`."""
    target = make({**PKG, "pkg/probe.py": f"from pkg.say import say\n{body}"}, "python3 -m pkg.probe")
    timeout_s = settings.pop("timeout_s", 20.0)
    spec = spec_of(target, **settings)
    return execute(replace(spec, probe=replace(spec.probe, timeout_s=timeout_s)))


# What an end means.


@pytest.mark.parametrize(
    ("end", "events", "status"),
    [
        (End(exit_code=0), Events(end="ok", readable=1), "ok"),
        (End(exit_code=3), Events(end="ok", readable=1), "ok"),
        (End(exit_code=0), Events(end="failed", readable=1), "cannot_be_tested"),
        (End(exit_code=0), Events(readable=1), "cannot_be_tested"),
        (End(exit_code=1), Events(readable=1), "cannot_be_tested"),
        (End(exit_code=0), Events(unreadable=1, problems=["line 1: not JSON"]), "cannot_be_tested"),
        (End(exit_code=0), Events(), "good"),
        (End(exit_code=1), Events(), "bad"),
        (End(exit_code=124), Events(), "bad"),
        (End(exit_code=125), Events(), "cannot_be_tested"),
        (End(exit_code=126), Events(), "cannot_be_tested"),
        (End(exit_code=127), Events(), "cannot_be_tested"),
        (End(exit_code=128), Events(), "infrastructure"),
        (End(exit_code=139), Events(), "infrastructure"),
        (End(signal=11), Events(), "cannot_be_tested"),
        (End(signal=9), Events(end="ok", readable=1), "cannot_be_tested"),
        (End(exit_code=0, stopped="no end within 1 s"), Events(end="ok", readable=1), "cannot_be_tested"),
        (End(not_started="x: no such file"), Events(), "cannot_be_tested"),
        (End(signal=15, stopped="stopped on request", cancelled=True), Events(), "cancelled"),
    ],
)
def test_the_end_of_a_run_means_what_the_contract_says(end: End, events: Events, status: str) -> None:
    found, reason = meaning(end, events, Record())

    assert found == status
    assert reason or (status in ("ok", "good") and end.exit_code == 0)


def test_a_file_from_outside_the_worktree_voids_the_run() -> None:
    status, reason = meaning(End(exit_code=0), Events(), Record(outside=(("shop.price", "/usr/lib/shop/price.py"),)))

    assert (status, reason) == (
        "cannot_be_tested",
        "`shop.price` was loaded from /usr/lib/shop/price.py, not from the worktree",
    )


# Ordinary runs.


def test_a_foreign_suite_is_judged_by_its_exit_code_in_a_worktree(
    foreign_repo: Repo, git: Git, tmp_path: Path, spec_of: MakeSpec
) -> None:
    pool = WorktreePool(git, tmp_path / "worktrees")
    found = {}
    for revision in ("v1", "main"):
        with pool.checkout(git.tree(revision)) as path:
            found[revision] = execute(spec_of(foreign_repo.target, path))
            assert pool.modified(path) == ()
    pool.sweep()

    assert (found["v1"].status, found["main"].status) == ("good", "bad")
    assert found["main"].exit_code == 1
    assert "assert 8 == 6" in found["main"].stderr_tail
    for result in found.values():
        assert result.events == Events()
        assert result.record.fully_traced, result.record.blind
        assert result.record.outside == ()
    # The body of `price` ran, the one of `rarely` did not.
    assert found["main"].record.files["shop/price.py"].lines == (1, 4, 5, 8)
    assert found["v1"].record.files["shop/price.py"].lines == (1, 2, 5)
    assert (-1, 2) in found["v1"].record.files["shop/price.py"].arcs
    assert found["v1"].record.loaded["shop.price"][0] == "shop/price.py"


def test_events_and_what_was_executed_come_back(plain_target: MakeTarget, spec_of: MakeSpec) -> None:
    result = run(
        plain_target,
        spec_of,
        "import os, sys\n"
        "say(event='item', id='a', ok=True, seed=os.environ['LIVEPATH_SEED'], run=os.environ['LIVEPATH_RUN'])\n"
        "if False:\n    never = 1\n"
        "print('to stdout'); print('to stderr', file=sys.stderr)\n"
        "say(event='end', status='ok', wall_s=0.1)\n",
        seed=7,
        run_id=42,
    )

    assert (result.status, result.reason, result.exit_code) == ("ok", "", 0)
    assert result.events.items[0]["tags"] == {"seed": "7", "run": "42"}
    assert result.stderr_tail == "to stderr"
    assert result.record.files["pkg/probe.py"].lines == (1, 2, 3, 4, 6, 7)
    assert result.record.loaded["pkg.probe"][0] == "pkg/probe.py"
    assert result.record.fully_traced


def test_a_plain_run_records_files_but_no_lines_and_never_counts_as_traced(
    plain_target: MakeTarget, spec_of: MakeSpec
) -> None:
    result = run(plain_target, spec_of, "say(event='end', status='ok')\n", traced=False)

    assert result.status == "ok"
    assert result.record.files == {}
    assert set(result.record.loaded) == {"pkg", "pkg.say", "pkg.probe"}
    assert not result.record.fully_traced


def test_progress_is_handed_on_while_the_probe_runs(plain_target: MakeTarget, spec_of: MakeSpec) -> None:
    target = plain_target(
        {
            **PKG,
            "pkg/probe.py": "import time\nfrom pkg.say import say\n"
            "say(event='progress', done=1, total=2)\ntime.sleep(0.8)\nsay(event='end', status='ok')\n",
        },
        "python3 -m pkg.probe",
    )
    seen: list[Progress] = []

    assert execute(spec_of(target), on_progress=seen.append).status == "ok"
    assert seen == [Progress(1.0, 2.0)]


def test_no_shell_runs_and_the_first_word_is_the_targets_interpreter(
    plain_target: MakeTarget, spec_of: MakeSpec
) -> None:
    spec = spec_of(plain_target(PKG, "python3 -c 'print(1)' $HOME ; rm {python}"))

    assert argv_of(spec) == [sys.executable, "-c", "print(1)", "$HOME", ";", "rm", sys.executable]
    assert paste(spec).endswith(f"{sys.executable} -c 'print(1)' '$HOME' ';' rm {sys.executable}")


def test_the_target_sees_only_the_environment_it_is_given(
    plain_target: MakeTarget, spec_of: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    target = replace(plain_target(PKG, "true"), env={"A": "1", "PYTHONPATH": "src"})
    env = environment(spec_of(target, env={"FAST": "1"}))

    assert "SECRET_TOKEN" not in env
    assert (env["A"], env["FAST"]) == ("1", "1")
    inject, *rest = env["PYTHONPATH"].split(os.pathsep)
    assert inject.endswith("lab/inject")
    assert rest == [str(target.repo), str(target.repo / "src")]


@pytest.mark.parametrize(("command", "message"), [("python3 'x", "No closing quotation"), ("", "empty command")])
def test_a_command_that_cannot_be_read_is_one_clear_error(
    plain_target: MakeTarget, spec_of: MakeSpec, command: str, message: str
) -> None:
    spec = spec_of(plain_target(PKG, "true"))

    with pytest.raises(RunError, match=message):
        argv_of(replace(spec, probe=replace(spec.probe, command=command)))


def test_a_command_that_is_not_there_is_not_runnable(plain_target: MakeTarget, spec_of: MakeSpec) -> None:
    result = execute(spec_of(plain_target(PKG, "no-such-program --x")))

    assert result.status == "cannot_be_tested"
    assert result.reason == "not runnable: no-such-program: No such file or directory"


def test_an_attempt_never_overwrites_another(plain_target: MakeTarget, spec_of: MakeSpec) -> None:
    spec = spec_of(plain_target(PKG, "true"))
    assert execute(spec).status == "good"

    with pytest.raises(RunError, match="cannot be used"):
        execute(spec)


# Hard ends.


def test_a_crash_is_never_bad_and_keeps_its_traceback(plain_target: MakeTarget, spec_of: MakeSpec) -> None:
    result = run(plain_target, spec_of, "say(event='item', id='a', ok=False)\nraise ValueError('no such layout')\n")

    assert result.status == "cannot_be_tested"
    assert result.reason == "events but no `end`; exit code 1"
    assert result.stderr_tail.endswith("ValueError: no such layout")
    assert result.record.fully_traced


def test_a_segmentation_fault_is_a_signal_and_not_an_exit_code(plain_target: MakeTarget, spec_of: MakeSpec) -> None:
    result = run(plain_target, spec_of, "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")

    assert (result.status, result.signal, result.exit_code) == ("cannot_be_tested", signal.SIGSEGV, None)
    assert not result.record.fully_traced
    assert "killed before its record was whole" in result.record.blind[0]


def test_garbage_on_every_channel_does_not_disturb(plain_target: MakeTarget, spec_of: MakeSpec) -> None:
    result = run(
        plain_target,
        spec_of,
        "import os, sys\n"
        "sys.stdout.buffer.write(bytes(range(256)) * 100); sys.stderr.buffer.write(b'\\xff\\x00\\x1b[2J' * 100)\n"
        "open(os.environ['LIVEPATH_EVENTS'], 'ab').write(b'\\xff{garbage\\n[1, 2]\\n')\n"
        "say(event='end', status='ok')\n",
    )

    assert (result.status, result.events.unreadable) == ("ok", 2)
    assert "\0" not in result.stderr_tail


def test_a_hang_is_ended_in_time_and_keeps_what_the_recorder_saw(plain_target: MakeTarget, spec_of: MakeSpec) -> None:
    began = time.monotonic()
    result = run(plain_target, spec_of, "import time\nwhile True:\n    time.sleep(0.01)\n", timeout_s=2.5)

    assert result.status == "cannot_be_tested"
    assert result.reason == "no end within 2.5 s"
    assert time.monotonic() - began < 9
    assert result.record.files["pkg/probe.py"].lines == (1, 2, 3, 4)


def test_a_probe_that_ignores_sigterm_is_killed(plain_target: MakeTarget, spec_of: MakeSpec) -> None:
    result = run(
        plain_target,
        spec_of,
        # What stops it comes after what ignores the signal, on the slowest machine too.
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open(os.environ['LIVEPATH_EVENTS'], 'a').write('x' * 2000)\ntime.sleep(60)\n",
        max_events_bytes=1000,
        grace_s=0.3,
    )

    assert (result.status, result.signal) == ("cannot_be_tested", signal.SIGKILL)
    assert not result.record.fully_traced


def test_a_flood_of_output_is_cut_and_said(plain_target: MakeTarget, spec_of: MakeSpec) -> None:
    spec = spec_of(
        plain_target(
            {
                **PKG,
                "pkg/probe.py": "import sys\nfor n in range(20000): print('x' * 99, n)\nsys.stderr.write('last')\n",
            },
            "python3 -m pkg.probe",
        ),
        max_output_bytes=10_000,
    )

    result = execute(spec)

    assert (result.status, result.stderr_tail) == ("good", "last")
    assert (spec.folder / "stdout.txt").stat().st_size == 10_000
    assert "stdout.txt was cut at 10000 bytes" in result.reason


def test_a_flood_of_events_is_stopped(plain_target: MakeTarget, spec_of: MakeSpec) -> None:
    result = run(
        plain_target,
        spec_of,
        "import os\nfile = open(os.environ['LIVEPATH_EVENTS'], 'a')\nwhile True: file.write('x' * 9999 + '\\n')\n",
        max_events_bytes=1_000_000,
    )

    assert result.status == "cannot_be_tested"
    assert result.reason.startswith("the events file grew past 1000000 bytes")


def test_orphans_in_sessions_of_their_own_are_found_and_ended(
    plain_target: MakeTarget, spec_of: MakeSpec, tmp_path: Path
) -> None:
    marker = f"orphan-{os.getpid()}-{tmp_path.name}"
    result = run(
        plain_target,
        spec_of,
        "import subprocess, sys, time\n"
        # It ignores SIGTERM, left the session and the environment, and closed the pipes.
        f"code = 'import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)  # {marker}'\n"
        "for _ in range(2):\n"
        "    subprocess.Popen([sys.executable, '-S', '-c', code], start_new_session=True, env={},\n"
        "                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "time.sleep(0.3)\n",
        grace_s=0.3,
    )

    assert living(marker) == []
    assert result.status == "good"
    assert "2 process(es) outlived the command" in result.reason
    assert not result.record.fully_traced


def test_cancel_ends_a_run_at_once_and_says_so(plain_target: MakeTarget, spec_of: MakeSpec) -> None:
    target = plain_target({**PKG, "pkg/probe.py": "import time\ntime.sleep(60)\n"}, "python3 -m pkg.probe")
    stop = threading.Event()
    threading.Timer(0.6, stop.set).start()
    began = time.monotonic()

    result = execute(spec_of(target), cancelled=stop.is_set)

    assert (result.status, result.reason) == ("cancelled", "stopped on request")
    assert time.monotonic() - began < 8
    assert living(str(target.repo)) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_the_lab(plain_target: MakeTarget, tmp_path: Path, number: signal.Signals) -> None:
    target = plain_target(
        {**PKG, "pkg/probe.py": "import os, time\nopen('started', 'w').close()\ntime.sleep(60)\n"},
        "python3 -m pkg.probe",
    )
    script = (
        "import sys; from pathlib import Path; from lab.target import Target; from lab.runner import RunSpec, execute\n"
        "target = Target.load(Path(sys.argv[1]))\n"
        "execute(RunSpec(probe=target.probes['p'], target=target, worktree=target.repo, folder=Path(sys.argv[2])))\n"
    )
    lab = subprocess.Popen(
        [sys.executable, "-c", script, str(target.repo), str(tmp_path / "attempt")],
        cwd=Path(__file__).parents[2],
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: (target.repo / "started").exists())
    assert living(str(target.repo))

    lab.send_signal(number)
    lab.wait(timeout=15)

    wait_for(lambda: not living(str(target.repo)))


def test_no_process_outlives_a_supervisor_that_was_killed(plain_target: MakeTarget, spec_of: MakeSpec) -> None:
    target = plain_target(
        {**PKG, "pkg/probe.py": "import os, signal, time\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(60)\n"},
        "python3 -m pkg.probe",
    )

    with pytest.raises(RunError, match="the process that watches the target died"):
        execute(spec_of(target))

    assert living(str(target.repo)) == []


def wait_for(condition: Callable[[], bool], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)

"""Waiting for a run ends when somebody presses Ctrl-C, whichever thread the system tells of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STOPPED_WHILE_WAITING = """
import signal, threading, time
from concurrent.futures import Future

from lab.bench import outcome_of


def told_instead_of_the_waiting_thread():
    time.sleep(0.5)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)


threading.Thread(target=told_instead_of_the_waiting_thread, daemon=True).start()
try:
    outcome_of(Future())
except KeyboardInterrupt:
    print("stopped")
"""


def test_an_interrupt_that_another_thread_gets_ends_the_wait() -> None:
    command = [sys.executable, "-c", STOPPED_WHILE_WAITING]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)

    assert done.stdout == "stopped\n"

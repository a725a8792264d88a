from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lab.record import Record, read_record, traced_names, traced_roots
from lab.runner import RunSpec, execute
from lab.target import Target

MakeTarget = Callable[..., Target]
MakeSpec = Callable[..., RunSpec]

# Each function lies on lines of its own, so that a test can say which ran.
WORK = """\
def one():
    return 1


def two():
    return 2


def three():
    return 3
"""
ONE, TWO, THREE = 2, 6, 10


def record(make: MakeTarget, spec_of: MakeSpec, body: str, *, status: str = "good", **files: str) -> Record:
    """Run `python3 -m pkg.probe` with this body and return the record."""
    more = {f"pkg/{name}.py": text for name, text in files.items()}
    target = make({"pkg/__init__.py": "", "pkg/work.py": WORK, "pkg/probe.py": body, **more}, "python3 -m pkg.probe")
    result = execute(spec_of(target))
    assert result.status == status, result
    return result.record


def ran(found: Record) -> set[int]:
    return set(found.files["pkg/work.py"].lines) & {ONE, TWO, THREE}


def test_the_digest_is_that_of_the_file_as_loaded(plain_target: MakeTarget, spec_of: MakeSpec) -> None:
    found = record(plain_target, spec_of, "from pkg.work import one\none()\n")

    assert found.files["pkg/work.py"].sha256 == hashlib.sha256(WORK.encode()).hexdigest()
    assert found.loaded["pkg.work"] == ("pkg/work.py", found.files["pkg/work.py"].sha256)
    assert (found.fully_traced, found.blind, ran(found)) == (True, (), {ONE})


def test_a_file_changed_after_it_was_loaded_is_a_blind_spot(plain_target: MakeTarget, spec_of: MakeSpec) -> None:
    found = record(plain_target, spec_of, "import pkg.work\nopen(pkg.work.__file__, 'a').write('# later')\n")

    assert found.blind == ("pkg/work.py changed on disk after it was loaded",)
    assert not found.fully_traced


@pytest.mark.parametrize(
    ("name", "body"),
    [
        (
            "subprocess",
            "import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'pkg.child'], check=True)\n",
        ),
        ("shell", "import os, sys\nos.system(f'{sys.executable} -m pkg.child')\n"),
        ("os._exit", "import os\nfrom pkg.work import two\ntwo()\nos._exit(0)\n"),
        ("fork", "import os\nfrom pkg.work import two\nif os.fork() == 0:\n    two()\n    os._exit(0)\nos.wait()\n"),
        (
            "multiprocessing spawn",
            "import multiprocessing\nfrom pkg.work import two\nif __name__ == '__main__':\n"
            "    p = multiprocessing.get_context('spawn').Process(target=two)\n    p.start(); p.join()\n",
        ),
        (
            "terminate",
            "import multiprocessing, time\nfrom pkg.child import forever\nif __name__ == '__main__':\n"
            "    q = multiprocessing.get_context('fork').SimpleQueue()\n"
            "    p = multiprocessing.get_context('fork').Process(target=forever, args=(q,))\n"
            "    p.start(); q.get(); p.terminate(); p.join()\n",
        ),
        (
            "thread",
            "import threading\nfrom pkg.work import two\nt = threading.Thread(target=two)\nt.start(); t.join()\n",
        ),
        ("exec", "import os, sys\nos.execv(sys.executable, [sys.executable, '-m', 'pkg.child'])\n"),
        ("preexec", "import subprocess\nfrom pkg.work import two\ntwo()\nsubprocess.run(['true'], preexec_fn=int)\n"),
        ("sys.exit at depth", "import sys\nfrom pkg.work import two\ntry:\n    two()\nfinally:\n    sys.exit(0)\n"),
        ("atexit", "import atexit\nfrom pkg.work import two\natexit.register(two)\n"),
    ],
)
def test_lines_are_seen_in_every_process_and_way_out(
    plain_target: MakeTarget, spec_of: MakeSpec, name: str, body: str
) -> None:
    child = (
        "import time\nfrom pkg.work import two\n\n"
        "def forever(queue):\n    two()\n    queue.put(1)\n    time.sleep(60)\n\n"
        "if __name__ == '__main__':\n    two()\n"
    )
    found = record(plain_target, spec_of, body, child=child)

    assert ran(found) == {TWO}, name
    assert found.fully_traced, found.blind


def test_a_killed_child_leaves_what_was_loaded_and_a_blind_spot(plain_target: MakeTarget, spec_of: MakeSpec) -> None:
    found = record(
        plain_target,
        spec_of,
        "import os, signal\n"
        "if os.fork() == 0:\n    import pkg.work\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "os.wait()\n",
    )

    assert found.loaded["pkg.work"][0] == "pkg/work.py"
    assert not found.fully_traced
    assert found.blind[0].startswith("a process was killed before its record was whole: ")


@pytest.mark.parametrize(
    "call",
    [
        "[sys.executable, '-I', '-c', '1']",
        "[sys.executable, '-c', '1'], env={}",
        "['env', '-i', sys.executable, '-c', '1']",
        "f'{sys.executable} -S -c 1', shell=True",
    ],
)
def test_a_child_out_of_reach_is_a_blind_spot(plain_target: MakeTarget, spec_of: MakeSpec, call: str) -> None:
    found = record(plain_target, spec_of, f"import subprocess, sys\nsubprocess.run({call})\n")

    assert not found.fully_traced
    assert found.blind[0].startswith("a Python child was started without the recorder: ")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("import sys\nsys.settrace(lambda *_: None)\n", "a trace function was set by"),
        ("import coverage\nc = coverage.Coverage(data_file=None)\nc.start(); c.stop()\n", "runs coverage itself"),
    ],
)
def test_another_tracer_is_a_blind_spot(plain_target: MakeTarget, spec_of: MakeSpec, body: str, why: str) -> None:
    found = record(plain_target, spec_of, body)

    assert not found.fully_traced
    assert why in found.blind[0]


def test_no_python_at_all_proves_nothing(plain_target: MakeTarget, spec_of: MakeSpec) -> None:
    found = execute(spec_of(plain_target({"pkg/__init__.py": ""}, "true"))).record

    assert (found.files, found.loaded, found.fully_traced, found.processes) == ({}, {}, False, 0)
    assert found.blind[0].startswith("the recorder did not start")


def test_a_copy_of_the_package_elsewhere_voids_the_run(
    plain_target: MakeTarget, spec_of: MakeSpec, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "site"
    (elsewhere / "pkg").mkdir(parents=True)
    (elsewhere / "pkg" / "__init__.py").write_text("")
    (elsewhere / "pkg" / "work.py").write_text(WORK)
    body = f"import sys\nsys.path.insert(0, {str(elsewhere)!r})\nfrom pkg.work import one\none()\n"
    target = plain_target({"pkg/__init__.py": "", "pkg/work.py": WORK, "probe.py": body}, "python3 probe.py")

    result = execute(spec_of(target))

    assert result.status == "cannot_be_tested"
    assert result.reason == f"`pkg` was loaded from {elsewhere}/pkg/__init__.py, not from the worktree"
    assert ("pkg.work", f"{elsewhere}/pkg/work.py") in result.record.outside


def test_a_hidden_sitecustomize_runs_as_if_ours_were_not_there(plain_target: MakeTarget, spec_of: MakeSpec) -> None:
    target = plain_target(
        {
            "pkg/__init__.py": "",
            "pkg/probe.py": "import sys\nassert sys.modules['sitecustomize'].MARK == sys.set_by_site == 3\n",
            "sitecustomize.py": "import sys\nMARK = 3\nsys.set_by_site = MARK\n",
        },
        "python3 -m pkg.probe",
    )

    result = execute(spec_of(target))

    assert result.status == "good", result.stderr_tail
    assert result.record.fully_traced


def test_names_that_must_come_from_the_worktree(tmp_path: Path) -> None:
    for name in (
        "engine/moe.py",
        "src/shop/__init__.py",
        "src/one.py",
        "src/data/x.json",
        "top/__init__.py",
        "setup.py",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (tmp_path / ".git").write_text("gitdir: x")

    assert traced_names(traced_roots(tmp_path, ["engine"])) == ["engine"]
    assert traced_names(traced_roots(tmp_path / "src", ["."])) == ["src"]
    assert traced_names(traced_roots(tmp_path, ["."])) == ["top"]
    assert traced_names(traced_roots(tmp_path, ["nowhere"])) == []


def test_a_damaged_record_is_partial_and_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "log.1.1.jsonl").write_bytes(b'{"event": "start", "pid": 1, "argv": ["x"]}\n{"event": "load\xff')
    (tmp_path / "lines.1.2").write_bytes(b"not a database")

    found = read_record(tmp_path, tmp_path)

    assert not found.fully_traced
    assert any("killed before its record was whole: x" in why for why in found.blind)
    assert any("damaged" in why for why in found.blind)


def _interpreter(version: str) -> str | None:
    for candidate in (
        shutil.which(f"python{version}"),
        *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")),
    ):
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_a_bare_interpreter_without_coverage_is_recorded_by_ours(
    plain_target: MakeTarget, spec_of: MakeSpec, version: str
) -> None:
    python = _interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    target = plain_target(
        {"pkg/__init__.py": "", "pkg/work.py": WORK, "pkg/probe.py": "from pkg.work import two\ntwo()\n"},
        "python3 -m pkg.probe",
    )

    result = execute(spec_of(replace(target, python=Path(python))))

    assert result.status == "good", result.stderr_tail
    assert ran(result.record) == {TWO}
    assert result.record.fully_traced, result.record.blind


def test_torch_is_never_imported_for_a_target_that_does_not(plain_target: MakeTarget, spec_of: MakeSpec) -> None:
    found = record(
        plain_target,
        spec_of,
        "import atexit, sys\natexit.register(lambda: print({'torch', 'triton', 'lab', 'store'} & set(sys.modules)))\n",
    )

    assert found.facts == {}
    assert found.fully_traced


@pytest.mark.e2e
def test_a_compiled_body_is_a_blind_spot(plain_target: MakeTarget, spec_of: MakeSpec) -> None:
    found = record(
        plain_target,
        spec_of,
        "import torch\n@torch.compile(backend='eager')\ndef double(x):\n    return x * 2\ndouble(torch.ones(2))\n",
    )

    assert found.facts["compiled_frames"] >= 1
    assert found.blind[0].startswith("torch.compile: the bodies of ")
    assert not found.fully_traced

"""The recorder inside a target's process: which lines ran (coverage.py) and which files were loaded (audit hook).

Contract: one log per process image, `LIVEPATH_RECORD/log.PID.N.jsonl`, appended line by line, so that a killed
process leaves what it knew: `start`, one `loaded` per module of the traced folders, `blind` for what it cannot see,
`facts` and `end`. No `end` means it was killed or wiped. Coverage data lie beside it, saved at exit, at os._exit, on
SIGTERM, before exec; forked children record anew. torch and triton are looked at only if the target imported them.
"""

import atexit
import contextlib
import hashlib
import json
import os
import signal
import sys
import threading
import time
import types
from typing import Any

_RECORD = os.environ.get("LIVEPATH_RECORD", "")
_ROOTS = tuple(path for path in os.environ.get("LIVEPATH_TRACE", "").split(os.pathsep) if path)
_NAMES = frozenset(name for name in os.environ.get("LIVEPATH_NAMES", "").split(",") if name)
_HERE = os.path.dirname(os.path.abspath(__file__))
# Flags after which the recorder is not found on PYTHONPATH, or site does not run.
_DEAF_FLAGS = ("-I", "-S", "-E")


class _State:
    """What the process knows of itself; anew after a fork."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.path = os.path.join(_RECORD, f"log.{self.pid}.{time.monotonic_ns()}.jsonl")
        self.coverage: Any = None
        self.seen: set[str] = set()
        self.finishing = threading.local()


_state = _State()
_exit = os._exit


def start() -> None:
    """Begin: log, hooks, line recorder."""
    with contextlib.suppress(OSError):
        _begin("start")
    sys.addaudithook(_on_audit)
    _start_lines()
    # Registered after coverage's own exit handler, so that it runs before it, and after those of the target.
    atexit.register(finish, "exit")
    os._exit = _exit_recorded  # type: ignore[assignment]
    os.register_at_fork(after_in_child=_after_fork)
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_term)


def finish(how: str) -> None:
    """Write all that is known; may be called again, the last call counts."""
    if getattr(_state.finishing, "now", False):
        return
    _state.finishing.now = True
    try:
        _look_at_modules()
        if _state.coverage is not None:
            if how != "exec":
                _state.coverage.stop()
            _state.coverage.save()
        _log(event="end", how=how)
    except Exception as error:
        _blind(f"the recorder could not finish: {type(error).__name__}: {error}")
    finally:
        _state.finishing.now = False


def _begin(event: str) -> None:
    _log(event=event, pid=_state.pid, parent=os.getppid(), argv=[str(word) for word in sys.orig_argv][:40])


def _start_lines() -> None:
    if os.environ.get("LIVEPATH_LINES") != "1":
        return
    ours = os.environ.get("LIVEPATH_COVERAGE", "")
    sys.path.append(ours)  # at the end: a coverage of the target's own fits its interpreter better
    try:
        import coverage

        branch = _has_tracer(coverage)
        recorder = coverage.Coverage(
            data_file=os.path.join(_RECORD, "lines"),
            data_suffix=f"{_state.pid}.{time.monotonic_ns()}",
            config_file=False,
            branch=branch,
            source=list(_ROOTS),
        )
        recorder.set_option(
            "run:disable_warnings",
            [
                "module-not-imported",
                "no-data-collected",
                "module-not-measured",
                "already-imported",
                "no-ctracer",
                "no-sysmon",
            ],
        )
        recorder.start()
        _state.coverage = recorder
        _watch_rivals(coverage.Coverage)
        _log(event="lines", coverage=coverage.__version__, arcs=branch)
    except Exception as error:
        _blind(f"no line recorder: {type(error).__name__}: {error}")
    finally:
        if ours in sys.path:
            sys.path.remove(ours)


def _watch_rivals(kind: Any) -> None:
    """A second coverage takes the trace function away from this one, and may have stopped long before the end."""
    begin = kind.start
    if begin.__module__ == __name__:
        return

    def start(self: Any) -> Any:
        if sys._getframe(1).f_globals.get("__name__") != __name__:
            _blind("the target runs coverage itself")
        return begin(self)

    kind.start = start


def _has_tracer(coverage: types.ModuleType) -> bool:
    """Whether arcs can be recorded at a bearable cost; else lines only, by sys.monitoring."""
    try:
        from coverage.tracer import CTracer  # noqa: F401
    except ImportError:
        if sys.version_info >= (3, 12):
            os.environ.setdefault("COVERAGE_CORE", "sysmon")
            return sys.version_info >= (3, 14)
    return True


def _on_audit(event: str, args: tuple[Any, ...]) -> None:
    try:
        if event == "exec":
            code = args[0]
            if isinstance(code, types.CodeType) and code.co_name == "<module>" and code.co_filename[0] != "<":
                _on_module(code.co_filename)
        elif event == "subprocess.Popen":
            _on_child(args[0], args[1], args[3])
        elif event == "os.exec" or event == "os.posix_spawn":
            _on_child(args[0], args[1], args[2])
            if event == "os.exec":
                finish("exec")
        elif event == "sys.settrace":
            _on_settrace()
    except Exception as error:  # the target must not see it
        with contextlib.suppress(Exception):
            _blind(f"the recorder failed in {event}: {type(error).__name__}: {error}")


def _on_module(filename: str) -> None:
    path = os.path.realpath(filename)
    name = _module_of(filename)
    if name.partition(".")[0] not in _NAMES and not path.startswith(tuple(root + os.sep for root in _ROOTS)):
        return
    if path not in _state.seen:
        _state.seen.add(path)
        with open(path, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        _log(event="loaded", module=name, path=path, sha256=digest)


def _module_of(filename: str) -> str:
    """The module whose body is about to run: the one most lately put into sys.modules with that file."""
    for name in reversed(list(sys.modules)):
        module = sys.modules.get(name)
        if isinstance(module, types.ModuleType):
            # Not by getattr: it would wake lazy modules.
            spec = object.__getattribute__(module, "__dict__").get("__spec__")
            if getattr(spec, "origin", None) == filename:
                return name
            if name not in ("__main__", "__mp_main__") and spec is not None:
                break
    # `python -m NAME` runs as __main__ with NAME's spec; a script has none.
    main: Any = getattr(sys.modules.get("__main__"), "__spec__", None)
    return str(main.name) if getattr(main, "origin", None) == filename else "__main__"


def _on_child(executable: Any, args: Any, env: Any) -> None:
    """Name a Python child that the recorder will not reach."""
    given = [os.fsdecode(word) for word in args] if isinstance(args, (list, tuple)) else [str(args)]
    words = [part for word in given for part in word.split()]  # a shell gets its command as one word
    python = [at for at, word in enumerate(words) if os.path.basename(word).startswith(("python", "pypy"))]
    if not python and not os.path.basename(os.fsdecode(executable or "")).startswith(("python", "pypy")):
        return
    flags = []
    for word in words[(python[0] if python else 0) + 1 :]:
        if not word.startswith("-") or word in ("-m", "-c", "-"):
            break
        flags.append(word)
    wiped = env is not None and not any(os.fsdecode(key) == "LIVEPATH_RECORD" for key in env)
    wiped |= "env" in words and ("-i" in words or "--ignore-environment" in words)
    if wiped or any(flag[:2] in _DEAF_FLAGS for flag in flags):
        _blind(f"a Python child was started without the recorder: {' '.join(words)[:120]}")


def _on_settrace() -> None:
    caller = sys._getframe(2).f_code.co_filename
    if caller == threading.__file__ and str(getattr(threading.gettrace(), "__module__", "")).startswith("coverage"):
        return  # a new thread takes up the recorder
    if _state.coverage is not None and f"{os.sep}coverage{os.sep}" not in caller:
        _blind(f"a trace function was set by {caller}")


def _look_at_modules() -> None:
    facts: dict[str, Any] = {}
    if not {"gevent", "eventlet", "greenlet"}.isdisjoint(sys.modules):
        _blind("greenlets switch stacks under the line recorder")
    for name, look in (("torch", _look_at_torch), ("triton.runtime.jit", _look_at_triton)):
        if name in sys.modules:
            try:
                look(facts)
            except Exception as error:
                _blind(f"{name} is loaded and cannot be asked what it compiled: {type(error).__name__}: {error}")
    if facts:
        _log(event="facts", **facts)


def _look_at_torch(facts: dict[str, Any]) -> None:
    torch = sys.modules["torch"]
    facts["torch"] = str(torch.__version__)
    facts["cuda"] = bool(torch.cuda.is_initialized())
    utils = sys.modules.get("torch._dynamo.utils")
    compiled = int(utils.counters["frames"]["ok"]) if utils is not None else 0
    if compiled:
        facts["compiled_frames"] = compiled
        _blind(f"torch.compile: the bodies of {compiled} compiled frames are not traced")
    if facts["cuda"]:
        import gc

        graphs = sum(issubclass(type(thing), torch.cuda.CUDAGraph) for thing in gc.get_objects())
        if graphs:
            facts["cuda_graphs"] = graphs
            _blind(f"CUDA graphs: lines behind {graphs} captured graphs ran at capture only")


def _look_at_triton(facts: dict[str, Any]) -> None:
    import gc

    function = sys.modules["triton.runtime.jit"].JITFunction
    launched = []
    for thing in gc.get_objects():
        if issubclass(type(thing), function) and any(cache[0] for cache in thing.device_caches.values()):
            code = thing.fn.__code__
            launched.append({"module": thing.fn.__module__, "name": thing.fn.__qualname__, "path": code.co_filename})
    if launched:
        facts["triton_launched"] = launched
        _blind(f"Triton: the bodies of {len(launched)} launched kernels are not traced")


def _on_term(number: int, frame: object) -> None:
    finish("SIGTERM")
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _exit_recorded(status: int) -> None:
    if os.getpid() == _state.pid:
        finish("_exit")
    _exit(status)


def _after_fork() -> None:
    # A child between fork and exec of `subprocess` is not a process of its own yet.
    if sys._getframe(1).f_code.co_name == "_execute_child":
        return
    global _state
    before = _state.coverage
    _state = _State()
    with contextlib.suppress(Exception):
        if before is not None:
            before.stop()
    _begin("fork")
    _start_lines()


def _blind(why: str) -> None:
    if why not in _state.seen:
        _state.seen.add(why)
        _log(event="blind", why=why)


def _log(**event: object) -> None:
    data = (json.dumps(event, default=str) + "\n").encode("utf-8", "replace")
    fd = os.open(_state.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)

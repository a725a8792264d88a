"""Several processes of one torch.distributed group, on this machine: gloo on CPU, NCCL on GPUs.

Contract: `spawn` returns what every process returned, by rank, or raises for the first that failed and ends the rest.
`joined` is the same group for processes that something else started; they meet at a file.
"""

from __future__ import annotations

import multiprocessing
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from engine.errors import EngineError


class ProcessError(EngineError):
    """A process of a group failed, or did not answer in time."""


@contextmanager
def joined(meeting: Path, rank: int, size: int, device: str = "cpu", timeout_s: float = 60) -> Iterator[None]:
    """Process `rank` of a group of `size` that meets at the file `meeting`, which must not exist before."""
    from torch import distributed

    backend = "nccl" if torch.device(device).type == "cuda" else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    distributed.init_process_group(
        backend,
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout_s),
    )
    try:
        yield
    finally:
        distributed.destroy_process_group()


def spawn(size: int, work: Callable[..., Any], *args: Any, device: str = "cpu", timeout_s: float = 60) -> list[Any]:
    """Runs `work(rank, *args)` in `size` new processes of one group, each on one thread; the results by rank.

    `work` is a module-level function. Its arguments and result are pickled; tensors should be on the CPU.

    Raises:
        ProcessError: one raised, died, or was not done in time; the message holds its traceback.
    """
    context = multiprocessing.get_context("forkserver")
    # Importing torch takes seconds: done once, in the server that all processes are forked from.
    context.set_forkserver_preload(["engine.engine"])
    with tempfile.TemporaryDirectory() as folder:
        ears: list[Connection] = []
        processes = []
        for rank in range(size):
            ear, mouth = context.Pipe(duplex=False)
            meeting = Path(folder) / "meeting"
            process = context.Process(target=_run, args=(mouth, meeting, rank, size, device, timeout_s, work, args))
            process.start()
            mouth.close()
            ears.append(ear)
            processes.append(process)
        try:
            return _results(ears, time.monotonic() + timeout_s)
        except BaseException:
            # The others wait for a process that will not answer.
            for process in processes:
                process.kill()
            raise
        finally:
            for ear, process in zip(ears, processes, strict=True):
                ear.close()
                process.join()


def _run(
    mouth: Connection,
    meeting: Path,
    rank: int,
    size: int,
    device: str,
    timeout_s: float,
    work: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    try:
        torch.set_num_threads(1)
        with joined(meeting, rank, size, device, timeout_s):
            answer = (True, work(rank, *args))
    except Exception:
        answer = (False, traceback.format_exc())
    # Plain pickling: a tensor handed over by shared memory would die with this process.
    mouth.send_bytes(pickle.dumps(answer))


def _results(ears: list[Connection], deadline: float) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(ears):
        left = [ear for rank, ear in enumerate(ears) if rank not in results]
        ready = wait(left, timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            missing = [rank for rank in range(len(ears)) if rank not in results]
            raise ProcessError(f"processes {missing} of {len(ears)} were not done in time")
        for ear in ready:
            rank = ears.index(ear)  # type: ignore[arg-type]
            try:
                fine, answer = pickle.loads(ears[rank].recv_bytes())
            except EOFError as error:
                raise ProcessError(f"process {rank} of {len(ears)} died without an answer") from error
            if not fine:
                raise ProcessError(f"process {rank} of {len(ears)} failed:\n{answer}")
            results[rank] = answer
    return [results[rank] for rank in range(len(ears))]

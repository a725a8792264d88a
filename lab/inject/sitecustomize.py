"""Starts the recorder in every Python process of a run; found by `site` because this folder comes first on
PYTHONPATH.

Contract: standard library only, Python 3.11 to 3.14. Acts only where LIVEPATH_RECORD is set. A `sitecustomize` of the
target, which this one hides, runs as if this one were not there. Nothing here may fail the target: what goes wrong is
written into the record.
"""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _run_hidden() -> None:
    """Run the sitecustomize further down sys.path, under its own name."""
    path = [entry for entry in sys.path if os.path.abspath(entry or os.getcwd()) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("LIVEPATH_RECORD"):
    import _livepath_recorder  # type: ignore[import-not-found]  # beside this file, on PYTHONPATH

    _livepath_recorder.start()
_run_hidden()

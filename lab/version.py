"""The version of Livepath that is running."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path


def livepath_version() -> str:
    """The version from the installed package, or from pyproject.toml in a checkout."""
    project = Path(__file__).resolve().parents[1] / "pyproject.toml"
    if project.is_file():
        found = re.search(r'^version = "([^"]+)"', project.read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return found[1]
    return metadata.version("livepath")

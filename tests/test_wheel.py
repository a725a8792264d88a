"""The wheel: one package, the rooms inside it, and a `livepath` that works where there is no checkout."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lab.demo import make_demo
from tests.lab.conftest import Repo

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("engine", "kernels", "lab", "store", "tui")

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: a build leaves folders behind."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in (*ROOMS, "livepath"):
        shutil.copytree(ROOT / name, source / name)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip(sys.executable, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source))
    (built,) = folder.glob("livepath-*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own with the wheel in it; the packages it needs are borrowed from ours."""
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    found = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text("\n".join(site.getsitepackages()), encoding="utf-8")
    pip(str(found), "install", "--no-deps", "--no-index", str(wheel))
    return found


def pip(python: str, *words: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=clean_env())
    assert done.returncode == 0, done.stdout + done.stderr


def clean_env() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")} | {"OMP_NUM_THREADS": "1"}


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, check=False, env=clean_env())


def livepath(python: Path, folder: Path, *words: str) -> str:
    done = run(folder, str(python.with_name("livepath")), *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_holds_one_package_with_every_room_and_its_data(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    assert {name.split("/")[0].partition("-")[0] for name in names} == {"livepath"}
    assert not [name for name in names if "__pycache__" in name]
    inside = {name.removeprefix("livepath/_rooms/") for name in names}
    shipped = [
        path.relative_to(ROOT).as_posix()
        for room in ROOMS
        for path in (ROOT / room).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    assert [name for name in shipped if name not in inside] == []


def test_the_rest_of_the_environment_sees_none_of_the_rooms(python: Path, tmp_path: Path) -> None:
    code = f"import importlib.util as u; print([n for n in {ROOMS} if u.find_spec(n)], bool(u.find_spec('livepath')))"

    assert run(tmp_path, str(python), "-c", code).stdout.strip() == "[] True"


def test_the_demo_works_in_an_empty_folder(python: Path, tmp_path: Path) -> None:
    made = json.loads(livepath(python, tmp_path, "demo", "--json"))
    patches = json.loads(livepath(python, tmp_path, "patch", "list", "--json"))
    ran = livepath(python, tmp_path, "run", "start", "scaling", "--arm", "base")
    report = json.loads(livepath(python, tmp_path, "report", "--json"))

    assert made["repository"] == str((tmp_path / ".demo").resolve())
    assert made["head"] == Repo(make_demo(tmp_path / "from-checkout")).git("rev-parse", "main")
    assert "nvfp4-experts" in {patch["name"] for patch in patches}
    assert ran.startswith("scaling on base: ok")
    assert {exponent["branch"] for exponent in report["exponents"]} >= {"routed"}
    assert len(report["readings"]) > 1  # the recorded session came along
    assert str(python.parent.parent) in json.dumps(report["machine"])


def test_it_also_starts_as_a_module_and_says_its_version(python: Path, wheel: Path, tmp_path: Path) -> None:
    version = wheel.name.split("-")[1]

    assert livepath(python, tmp_path, "--version").strip() == f"livepath {version}"
    assert run(tmp_path, str(python), "-m", "livepath", "--version").stdout.strip() == f"livepath {version}"


def test_a_failure_has_its_exit_code(python: Path, tmp_path: Path) -> None:
    command = str(python.with_name("livepath"))

    assert run(tmp_path, command, "patch", "list").returncode == 2
    assert run(tmp_path, command, "judge", "needle").returncode == 128

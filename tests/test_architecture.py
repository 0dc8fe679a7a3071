"""The rules of the architecture, as tests."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ORDER = ("policies", "reports", "dflash_sim", "dflash_run")
DECIDING = ("builtin", "dispatcher", "effects", "errors", "hop", "ledger", "policy", "window")


def _modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("package", ORDER)
def test_imports_go_one_way(package: str) -> None:
    above = ORDER[ORDER.index(package) + 1 :]
    wrong = [(path.name, name) for path in _modules(package) for name in _imports(path) if name.split(".")[0] in above]
    assert not wrong


@pytest.mark.parametrize("module", DECIDING)
def test_the_dispatcher_and_the_policies_import_the_standard_library_only(module: str) -> None:
    imported = {name.split(".")[0] for name in _imports(ROOT / "policies" / f"{module}.py")}
    assert imported <= sys.stdlib_module_names | {"policies"}
    ours = {name for name in _imports(ROOT / "policies" / f"{module}.py") if name.startswith("policies.")}
    assert ours <= {f"policies.{name}" for name in DECIDING}


@pytest.mark.parametrize("package", ORDER)
def test_the_first_line_of_every_module_says_what_it_is_for(package: str) -> None:
    for path in _modules(package):
        assert ast.get_docstring(ast.parse(path.read_text())), path


@pytest.mark.parametrize(("library", "room"), [("matplotlib", "reports/draw"), ("pandas", "reports/page/csvfiles.py")])
def test_only_plotting_modules_import_what_draws(library: str, room: str) -> None:
    found = [
        str(path.relative_to(ROOT))
        for package in ORDER
        for path in _modules(package)
        if any(name.split(".")[0] == library for name in _imports(path))
    ]
    assert found and all(path.startswith(room) for path in found)


@pytest.mark.parametrize("module", ["reports.cli", "reports.moved", "reports.runs", "dflash_sim.cli", "dflash_run.cli"])
def test_commands_start_without_what_draws(module: str) -> None:
    code = f"import sys, {module}; print(sorted({{'matplotlib', 'pandas'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_nothing_unpickles_or_evaluates() -> None:
    banned = re.compile(r"\bimport pickle\b|\bpickle\.|(?<![\w.])eval\(|(?<![\w.])exec\(|yaml\.(unsafe_)?load\(")
    found = [path for package in ORDER for path in _modules(package) if banned.search(path.read_text())]
    assert not found


def test_every_package_is_installed_and_typed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert {f"{package}*" for package in ORDER} == set(project["tool"]["setuptools"]["packages"]["find"]["include"])
    assert all((ROOT / package / "py.typed").exists() for package in ORDER)


def test_light_packages_do_not_depend_on_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    heavy = re.compile(r"torch|transformers|ray\b")
    assert not [each for each in project["dependencies"] if heavy.search(each)]
    assert {"run", "reports", "ray", "dev"} <= set(project["optional-dependencies"])


def test_test_names_are_sentences() -> None:
    names = []
    for path in _modules("tests"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                names.append(node.name)
    assert names and not [name for name in names if name.count("_") < 4]

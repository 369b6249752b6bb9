"""Who may import whom, read from the sources: nothing is executed."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")

ROOT = Path(__file__).parents[2]
ALLOWED_SIBLINGS = {
    "gguf_info": set(),
    "vram_report": {"gguf_info"},
    "llama_launch": {"gguf_info", "vram_report"},
    "opencode_harness": {"gguf_info", "vram_report", "llama_launch"},
}
# A third-party package that belongs to few modules: everything else sees their own types.
ONLY_IN = {
    ("opencode_harness", "pexpect"): {"tui"},
    ("opencode_harness", "pyte"): {"screen"},
    ("opencode_harness", "pytest"): {"pytest_plugin", "session"},
    ("llama_launch", "xllamacpp"): {"embedded"},
    ("vram_report", "pynvml"): {"gpu_watch"},
}
DISTRIBUTION_OF = {"yaml": "pyyaml", "jsonpath": "python-jsonpath", "pynvml": "nvidia-ml-py"}
# vram-report knows gguf-info only through its optional extra, from one module.
OPTIONAL_SIBLING = ("vram_report", "gguf_info")


def sources(package: str) -> Iterator[Path]:
    yield from sorted((ROOT / "packages" / package.replace("_", "-") / "src" / package).rglob("*.py"))


def imported_modules(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            yield node.module or ""


def imports_of(path: Path) -> set[str]:
    return set(imported_modules(ast.parse(path.read_text(encoding="utf-8"))))


def top_level(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


def pyproject(package: str) -> dict[str, object]:
    path = ROOT / "packages" / package.replace("_", "-") / "pyproject.toml"
    project: dict[str, object] = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    return project


def declared(package: str) -> set[str]:
    project = pyproject(package)
    requirements = [*project["dependencies"]]  # type: ignore[misc]
    for extra in project.get("optional-dependencies", {}).values():  # type: ignore[attr-defined]
        requirements += extra
    return {re.split(r"[\[<>=~!; ]", requirement)[0].lower().replace("_", "-") for requirement in requirements}


@pytest.mark.parametrize("package", ALLOWED_SIBLINGS)
def test_a_package_imports_only_the_siblings_below_it(package: str) -> None:
    for path in sources(package):
        siblings = top_level(imports_of(path)) & set(ALLOWED_SIBLINGS) - {package}
        assert siblings <= ALLOWED_SIBLINGS[package], f"{path} imports {siblings}"


@pytest.mark.parametrize("package", ALLOWED_SIBLINGS)
def test_a_sibling_is_imported_from_its_root_only(package: str) -> None:
    for path in sources(package):
        for module in imports_of(path):
            root, _, inner = module.partition(".")
            assert root not in ALLOWED_SIBLINGS or root == package or not inner, f"{path} imports {module}"


# In the standard library since Python 3.11, and imported only there.
NEWER_STDLIB = {"tomllib"}


@pytest.mark.parametrize("package", ALLOWED_SIBLINGS)
def test_a_package_declares_everything_that_it_imports(package: str) -> None:
    allowed = declared(package) | set(sys.stdlib_module_names) | NEWER_STDLIB | {package}
    for path in sources(package):
        for module in top_level(imports_of(path)):
            distribution = DISTRIBUTION_OF.get(module, module).replace("_", "-")
            assert distribution in allowed or module in allowed, f"{path} imports {module}, which is not declared"


@pytest.mark.parametrize(("package", "third_party"), ONLY_IN)
def test_an_edge_library_stays_in_its_module(package: str, third_party: str) -> None:
    users = {path.stem for path in sources(package) if third_party in top_level(imports_of(path))}
    assert users == ONLY_IN[package, third_party]


def test_the_optional_sibling_is_imported_inside_functions_only() -> None:
    package, optional = OPTIONAL_SIBLING
    for path in sources(package):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        at_import_time = set(imported_modules(ast.Module(body=[n for n in tree.body if is_import(n)], type_ignores=[])))
        assert optional not in top_level(at_import_time), f"{path} needs {optional} at import time"


def is_import(node: ast.stmt) -> bool:
    return isinstance(node, (ast.Import, ast.ImportFrom))


@pytest.mark.parametrize("name", ["noxfile.py", "tasks.py"])
def test_nox_and_invoke_files_import_no_package(name: str) -> None:
    assert not top_level(imports_of(ROOT / name)) & set(ALLOWED_SIBLINGS)


@pytest.mark.parametrize("package", ALLOWED_SIBLINGS)
def test_all_packages_have_one_version_and_ask_for_siblings_compatibly(package: str) -> None:
    version = str(pyproject("gguf_info")["version"])
    project = pyproject(package)
    assert project["version"] == version
    for requirement in project["dependencies"]:  # type: ignore[attr-defined]
        name = re.split(r"[\[~]", requirement)[0]
        if name.replace("-", "_") in ALLOWED_SIBLINGS:
            assert requirement.endswith(f"~={version}")


@pytest.mark.parametrize("package", ALLOWED_SIBLINGS)
def test_public_names_exist_and_modules_say_what_is_public(package: str) -> None:
    for path in sources(package):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert ast.get_docstring(tree), f"{path} has no docstring"
        exported = [n for n in tree.body if isinstance(n, ast.Assign) and "__all__" in ast.unparse(n.targets[0])]
        assert exported or path.name == "__main__.py", f"{path} has no __all__"

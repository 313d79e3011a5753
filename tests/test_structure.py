"""The house rules that a linter does not know: layout, import direction, sizes, and tests that test.

Every rule is a function from source to complaints, and is itself tried on source that breaks it.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("agents", "harness", "leaderboard", "shapes")
DIRECTORIES = {*PACKAGES, "docs", "submissions", "tests"}
UNTRACKED = {"build", "dist", "runs"}

ALLOWED_IMPORTS = {
    "agents": {"agents", "harness", "shapes"},
    "harness": {"harness", "shapes"},
    "leaderboard": {"leaderboard", "harness", "shapes"},
    "shapes": {"shapes"},
}
LAZY_MOUNTS = "harness/cli.py"
"""The one module of harness that may name agents and leaderboard, as import strings of commands."""

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_ARGUMENTS = 6
HEAVY = ("cupy", "jinja2", "numpy", "pandas", "rich", "torch", "typer")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
SOURCE_SUFFIXES = {".py", ".toml", ".c", ".cu", ".cuh", ".h", ".ptx", ".j2"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def python_files(*directories: str) -> list[Path]:
    """Python sources below these directories, without submissions that tests hold as data."""
    found = [path for directory in directories for path in sorted((ROOT / directory).rglob("*.py"))]
    return [path for path in found if not {"redteam", "benign", "__pycache__"} & set(path.relative_to(ROOT).parts)]


def complaints(rule: Callable[[ast.Module, str], Iterator[str]], *directories: str) -> list[str]:
    """What a rule says about every Python file below the directories."""
    found = []
    for path in python_files(*directories):
        name = path.relative_to(ROOT).as_posix()
        found += [f"{name}:{complaint}" for complaint in rule(ast.parse(path.read_text(encoding="utf-8")), name)]
    return found


def functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def forbidden_imports(tree: ast.Module, name: str) -> Iterator[str]:
    """Imports, and import strings, of packages of ours that the module's package must not know."""
    package = name.split("/")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules = [node.module or ""]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and name != LAZY_MOUNTS:
            modules = re.findall(r"^\w+(?:\.\w+)*(?:\.\w+|:\w+)$", node.value)
        else:
            continue
        for module in modules:
            top = re.split(r"[.:]", module)[0]
            if top in {*PACKAGES, "tests"} and top not in ALLOWED_IMPORTS[package]:
                yield f"{node.lineno} {package} must not import {module}"


def oversized(tree: ast.Module, name: str) -> Iterator[str]:
    """Functions that are too long or take too many arguments; CLI commands may take more arguments."""
    is_command = "/commands/" in name or name.endswith(("/commands.py", "/cli.py"))
    for function in functions(tree):
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        if lines > MAX_FUNCTION_LINES:
            yield f"{function.lineno} {function.name} has {lines} lines (at most {MAX_FUNCTION_LINES})"
        spec = function.args
        arguments = [argument.arg for argument in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)]
        count = len([argument for argument in arguments if argument not in {"self", "cls"}])
        if count > MAX_ARGUMENTS and not is_command and not name.startswith("tests/"):
            yield f"{function.lineno} {function.name} takes {count} arguments (at most {MAX_ARGUMENTS})"


def unannotated(tree: ast.Module, name: str) -> Iterator[str]:
    """Functions without a return type."""
    for function in functions(tree):
        if function.returns is None:
            yield f"{function.lineno} {function.name} has no return type"


def swallowing(tree: ast.Module, name: str) -> Iterator[str]:
    """Handlers that catch everything and do nothing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            caught = node.type
            everything = caught is None or (isinstance(caught, ast.Name) and caught.id in {"Exception", "BaseException"})
            if everything and all(isinstance(each, ast.Pass | ast.Continue) or _is_literal(each) for each in node.body):
                yield f"{node.lineno} swallows every exception"


def assertionless(tree: ast.Module, name: str) -> Iterator[str]:
    """Tests that cannot fail but by crashing."""
    for function in functions(tree):
        if function.name.startswith("test_") and not any(_asserts(node) for node in ast.walk(function)):
            yield f"{function.lineno} {function.name} asserts nothing"


def test_top_level_is_the_documented_layout() -> None:
    present = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith((".", "__"))}
    present -= UNTRACKED | {name for name in present if name.endswith(".egg-info")}
    assert present == DIRECTORIES
    for package in PACKAGES:
        assert (ROOT / package / "__init__.py").is_file()


def test_imports_go_one_way() -> None:
    assert complaints(forbidden_imports, *PACKAGES) == []


def test_modules_are_short() -> None:
    sizes = {
        path: len(path.read_text(encoding="utf-8").splitlines()) for path in python_files(*PACKAGES, "tests", "submissions")
    }
    assert {str(path.relative_to(ROOT)): size for path, size in sizes.items() if size > MAX_MODULE_LINES} == {}


def test_functions_are_short_and_take_few_arguments() -> None:
    assert complaints(oversized, *PACKAGES, "tests", "submissions") == []


def test_every_function_has_a_return_type() -> None:
    assert complaints(unannotated, *PACKAGES, "tests", "submissions") == []


def test_no_exception_is_swallowed() -> None:
    assert complaints(swallowing, *PACKAGES, "tests", "submissions") == []


def test_every_test_asserts_something() -> None:
    assert complaints(assertionless, "tests") == []


def test_nothing_is_left_unfinished() -> None:
    found = []
    for directory in sorted(DIRECTORIES - {"tests", "docs"}):
        for path in sorted((ROOT / directory).rglob("*")):
            if path.suffix in SOURCE_SUFFIXES and path.is_file():
                lines = path.read_text(encoding="utf-8").splitlines()
                found += [
                    f"{path.relative_to(ROOT)}:{n} {line.strip()}" for n, line in enumerate(lines, 1) if UNFINISHED.search(line)
                ]
    assert found == []


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import harness", HEAVY),
        ("import harness; [getattr(harness, name) for name in harness.__all__]", ("cupy", "torch")),
    ],
)
def test_harness_loads_nothing_heavy(code: str, unwanted: tuple[str, ...]) -> None:
    code = f"import sys; {code}; print('loaded', *sorted(set({unwanted}) & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.stdout.split() == ["loaded"], result.stderr


def test_the_public_names_of_harness_are_there() -> None:
    public = importlib.import_module("harness").__all__
    assert {"Problem", "Submission", "Plan", "Record", "Run", "Evaluator", "reward"} <= set(public)


@pytest.mark.parametrize(
    ("rule", "name", "bad", "good"),
    [
        (forbidden_imports, "shapes/a.py", "import harness.plan", "import json"),
        (forbidden_imports, "harness/a.py", "from agents.space import x", "from shapes import load"),
        (forbidden_imports, "harness/a.py", "x = 'agents.commands:app'", "x = 'agents are welcome'"),
        (forbidden_imports, "harness/a.py", "def f():\n    import leaderboard", "def f():\n    import torch"),
        (forbidden_imports, "harness/b.py", "x = 'agents.commands'", "x = 'harness.plan:Plan'"),
        (forbidden_imports, "leaderboard/a.py", "import agents", "import harness"),
        (oversized, "harness/a.py", "def f():\n" + "    x = 1\n" * 60, "def f():\n" + "    x = 1\n" * 59),
        (oversized, "harness/a.py", "def f(a, b, c, d, e, g, h): ...", "def f(self, a, b, c, d, e, g): ..."),
        (oversized, "harness/a.py", "def f(a, b, c, d, *, e, g, h): ...", "def f(a, b, c, d, *, e, g): ..."),
        (unannotated, "harness/a.py", "def f(): ...", "def f() -> None: ..."),
        (swallowing, "harness/a.py", "try:\n    f()\nexcept Exception:\n    pass", "try:\n    f()\nexcept OSError:\n    pass"),
        (swallowing, "harness/a.py", "try:\n    f()\nexcept:\n    ...", "try:\n    f()\nexcept Exception:\n    raise"),
        (assertionless, "tests/a.py", "def test_f():\n    f()", "def test_f():\n    assert f()"),
        (
            assertionless,
            "tests/a.py",
            "def test_f():\n    x = raises",
            "def test_f():\n    with pytest.raises(E):\n        f()",
        ),
    ],
)
def test_rules_can_fail(rule: Callable[[ast.Module, str], Iterator[str]], name: str, bad: str, good: str) -> None:
    assert len(list(rule(ast.parse(bad), name))) == 1
    assert list(rule(ast.parse(good), name)) == []


def test_commands_alone_may_take_many_arguments_and_cli_alone_may_name_agents() -> None:
    many = ast.parse("def f(a, b, c, d, e, g, h): ...")
    assert list(oversized(many, "harness/commands/run.py")) == list(oversized(many, "agents/commands.py")) == []
    mount = ast.parse("x = 'agents.commands:app'")
    assert list(forbidden_imports(mount, LAZY_MOUNTS)) == []
    assert len(list(forbidden_imports(ast.parse("import agents"), LAZY_MOUNTS))) == 1


def _is_literal(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _asserts(node: ast.AST) -> bool:
    """An assert, a call such as pytest.raises(...), or a call of a helper named assert_*, check_* or expect_*."""
    if isinstance(node, ast.Assert):
        return True
    if not isinstance(node, ast.Call):
        return False
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return called in {"raises", "warns", "fail"} or called.startswith(("assert_", "check_", "expect_"))

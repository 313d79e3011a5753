"""The documents say what the code does: constants, reasons, links, commands, and examples that run."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from harness.cli import COMMANDS
from harness.plan import Plan, Unsupported
from harness.problem import Problem
from harness.profiles import load_profile
from harness.protocol import PROTOCOL_VERSION, protocol_for
from harness.record import Reason, Status

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_every_constant_of_the_protocol_has_the_value_of_the_code() -> None:
    rows = re.findall(r"^\| `(harness\.[\w.]+)\.([A-Z0-9_]+)` \| `([^`]+)` \|", text("docs/protocol.md"), re.MULTILINE)
    assert len(rows) > 30
    written = {f"{module}.{name}": ast.literal_eval(value) for module, name, value in rows}
    assert written == {f"{module}.{name}": getattr(importlib.import_module(module), name) for module, name, _ in rows}
    named = set(re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b", text("docs/protocol.md").split("## Constants")[0]))
    assert named - {name for _, name, _ in rows} == set()


def test_every_field_of_the_protocols_has_the_value_of_the_code() -> None:
    rows = re.findall(r"^\| protocol `(\w+)` on `(\w+)` \| `([^`]+)` \|", text("docs/protocol.md"), re.MULTILINE)
    assert len(rows) == 6
    for field, profile, value in rows:
        assert getattr(protocol_for(load_profile(profile)), field) == ast.literal_eval(value), (field, profile)


def test_the_protocol_describes_the_version_of_the_code() -> None:
    assert f"Protocol version **{PROTOCOL_VERSION}**" in text("docs/protocol.md")


def test_every_reason_and_status_is_explained() -> None:
    document = text("docs/protocol.md")
    for reason in Reason:
        assert f"| `{reason}` | {reason.__doc__} |" in document
    for status in Status:
        assert f"| `{status}` | " in document


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    content = path.read_text(encoding="utf-8")
    anchors = {slug(heading) for heading in re.findall(r"^#+ (.+)$", content, re.MULTILINE)}
    for target in re.findall(r"\]\(([^)\s]+)\)", content):
        if target.startswith("#"):
            assert target[1:] in anchors, target
        elif not target.startswith(("http://", "https://")):
            assert (path.parent / target.split("#")[0]).exists(), target


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_exist(path: Path) -> None:
    named = re.findall(r"(?:^|`)hgemm ([a-z]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(named) - set(COMMANDS) == set()


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", text("docs/submissions.md"), re.DOTALL)


@pytest.mark.parametrize("source", examples(), ids=lambda source: str(len(source)))
def test_plans_of_the_guide_are_valid(source: str) -> None:
    namespace: dict[str, Any] = {}
    exec(compile(source, "docs/submissions.md", "exec"), namespace)
    problem = Problem(m=256, n=256, k=512)
    plan = namespace["plan"](problem, load_profile("cpu" if '"c"' in source else "h200"))
    assert isinstance(plan, Plan)
    plan.check_bounds(problem)
    if "Unsupported(" in source:
        assert isinstance(namespace["plan"](Problem(m=1, n=1, k=(1 << 20) + 1), load_profile("h200")), Unsupported)


def test_the_guide_has_its_examples() -> None:
    assert len(examples()) == 4


def test_the_module_map_is_complete() -> None:
    document = text("docs/architecture.md")
    sources = (path.relative_to(ROOT / "harness") for path in (ROOT / "harness").rglob("*.py"))
    modules = {path.name for path in sources if path.parts[0] != "commands"} - {"__init__.py", "__main__.py"}
    assert {name for name in modules if not re.search(rf"(?<![\w.]){re.escape(name)}\b", document)} == set()


def slug(heading: str) -> str:
    """A heading's anchor as GitHub makes it."""
    kept = re.sub(r"[^\w\- ]", "", heading.lower())
    return kept.replace(" ", "-")

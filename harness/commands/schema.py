"""`hgemm schema`: JSON Schema of everything that is written to a file or printed with `--json`."""

from __future__ import annotations

import importlib
import json
from typing import Annotated, Any

import typer

from harness import cli
from harness.model import DataError, Model

FORMATS = {
    "submission": "harness.submission:Manifest",
    "plan": "harness.plan:PlanFile",
    "profile": "harness.profiles:DeviceProfile",
    "run": "harness.run:Header",
    "segment": "harness.run:Segment",
    "record": "harness.record:Record",
    "samples": "harness.run:SampleLine",
    "end": "harness.run:End",
    "scores": "harness.scores:Scores",
    "report": "harness.run_report:RunReport",
    "check": "harness.commands.check:CheckReport",
    "audit": "harness.commands.audit:Audit",
    "build": "harness.commands.build:BuildList",
    "diagnosis": "harness.diagnosis:Diagnosis",
    "cache-info": "harness.cache:CacheInfo",
    "cache-prune": "harness.cache:Pruned",
    "saturation": "harness.saturation:Saturation",
    "replay": "harness.replay:Replay",
    "comparison": "harness.compare:Comparison",
    "verdict": "harness.gate:Verdict",
    "benchmark": "harness.gate_data:Benchmark",
    "pin": "harness.gate_data:Pin",
    "shapes": "harness.commands.shapes:ShapeSetList",
    "shape-set": "harness.commands.shapes:ShapeSetDetails",
    **cli.FORMATS,
}
"""Per format, where its model is; imported only when asked for."""


def schema(
    name: Annotated[str | None, typer.Argument(help="One format; without it all, as one object by name.")] = None,
) -> None:
    """Print the JSON Schema of a file format."""
    document: dict[str, Any] = {each: schema_of(each) for each in FORMATS} if name is None else schema_of(name)
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


def schema_of(name: str) -> dict[str, Any]:
    """JSON Schema (2020-12) of the format.

    Raises:
        DataError: no format has that name.
    """
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **model_of(name).model_json_schema()}


def model_of(name: str) -> type[Model]:
    """The model of the format.

    Raises:
        DataError: no format has that name.
    """
    if name not in FORMATS:
        raise DataError(f"no file format is called {name!r}; there are {', '.join(FORMATS)}.")
    module, _, attribute = FORMATS[name].partition(":")
    model: type[Model] = getattr(importlib.import_module(module), attribute)
    return model

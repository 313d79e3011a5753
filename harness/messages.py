"""What a parent and its worker say to each other: validated JSON, never pickles, since a worker may be untrusted."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from harness.model import Count, Model, Name, Positive
from harness.plan import Layout, Plan
from harness.problem import Problem
from harness.protocol import Protocol
from harness.record import Contender, L2State, Measure, Reason
from harness.run import DeviceInfo
from harness.verify.checks import Errors
from harness.verify.inputs import InputKind

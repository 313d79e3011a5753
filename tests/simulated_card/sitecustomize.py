"""Loaded by every interpreter with this folder on PYTHONPATH: modules that need a card are replaced by simulated ones."""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

REPLACED = {"harness.devices.cuda": "card.py"}
# A worker does not inherit it, and here torch's threads would share the processors with those of the other card.
os.environ["OMP_NUM_THREADS"] = "1"


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name not in REPLACED:
            return None
        return importlib.util.spec_from_file_location(name, Path(__file__).with_name(REPLACED[name]))


sys.meta_path.insert(0, Finder())

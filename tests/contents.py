"""What the files of a run say, but for clocks: two runs of one experiment must leave the same."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch

from excite.runs.records import STAGES
from excite.trace import Trace

MEASURED = {"seconds", "sha256"}  # another time, and so another hash of what holds it
OF_EVERY_GO = {STAGES, "report.html"}  # when and where it was, and in which order


def contents(run: Path) -> dict[str, Any]:
    """By name, every file, also what was left lying about; tensors bit by bit."""
    return {
        str(path.relative_to(run)): _content(path)
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.name not in OF_EVERY_GO and path.suffix not in (".lock", ".log")
    }


def _content(path: Path) -> Any:
    if path.suffix in (".json", ".jsonl"):
        text = path.read_text(encoding="utf-8")
        return [timeless(json.loads(line)) for line in (text.splitlines() if path.suffix == ".jsonl" else [text])]
    if path.name == "trace.safetensors":  # the order of its header is by chance
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in _trace(path)}
    if path.suffix == ".safetensors":
        tensors = safetensors.torch.load_file(path)
        return {name: (value.shape, value.numpy().tobytes()) for name, value in tensors.items()}
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _trace(path: Path) -> list[tuple[str, Any]]:
    return list(asdict(Trace.load(path)).items())


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key not in MEASURED}
    return [timeless(item) for item in value] if isinstance(value, list) else value

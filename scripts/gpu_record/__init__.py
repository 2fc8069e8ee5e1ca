"""The modules of scripts/gpu-record, which runs the GPU tests and records the results in reports/gpu.json."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "reports" / "gpu.json"
CACHE = ROOT / "build" / "gpu-record-cache"

"""Makes the files of this folder, which later versions must still read, and hashes of weights.

    python tests/earlier/make.py runs      data, runs, a sweep
    python tests/earlier/make.py hashes    SHA-256 of the weights after 300 steps

The files in the folder were made by version 0.1.0, commit d1d3b3a. Hashes are added to hashes.json
for the machine that runs the command.
Only the command line is used, so that any version of the project can run this file.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file

HERE = Path(__file__).parent
MODEL = dict(hidden_mv_channels=4, hidden_s_channels=8, num_blocks=2, num_heads=2)
NBODY = ["data.folder=nbody_data", "train.batch_size=16", "device=cpu", "train.lr=0.003"]
ARTERIES = [
    "data.folder=artery_data",
    "train.batch_size=2",
    "train.precision=float32",
    "device=cpu",
]
OFTEN = [
    "train.steps=20", "train.checkpoint_every=10", "train.validate_every=10", "train.log_every=5",
]  # fmt: skip
LONG = ["train.steps=300", "train.validate_every=150", "train.checkpoint_every=300"]
TRAINED = {
    "nbody": ("nbody", [*NBODY, "model.options.reinsert_mv_channels=[0]"]),
    "nbody_attention_width_1": (
        "nbody",
        [*NBODY, "model.options.attention_width=1", "train.ema=0.9"],
    ),
    "arteries": ("arteries", ARTERIES),
    "arteries_thinned": (
        "arteries",
        [*ARTERIES, "data.options.nodes=64", "data.options.augment=true"],
    ),
}
"""Runs whose weights after 300 steps are hashed: experiment and settings."""


def settings(*changes: str) -> list[str]:
    model = [f"model.options.{key}={value}" for key, value in MODEL.items()]
    return [x for change in (*model, *changes) for x in ("--set", change)]


def command(*arguments: str, folder: Path = HERE, kernels: str = "") -> None:
    """`flashgatr ARGUMENTS` in a folder, on one thread."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    environment |= {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "FLASHGATR_KERNELS": kernels}
    subprocess.run(
        [sys.executable, "-m", "flashgatr", *arguments],
        cwd=folder, env=environment, check=True, capture_output=True, timeout=600,
    )  # fmt: skip


def weights_hash(run: Path) -> str:
    """SHA-256 of the names and bytes of a run's trained weights."""
    found = hashlib.sha256()
    for name, x in sorted(load_file(run / "model" / "model.safetensors").items()):
        found.update(f"{name} {x.dtype} {tuple(x.shape)}".encode())
        found.update(x.contiguous().numpy().tobytes())
    return found.hexdigest()


def trained_hash(name: str, kernels: str) -> str:
    """Train one of TRAINED in a temporary folder and hash its weights.

    kernels: "" (fused) or "plain".
    """
    experiment, changes = TRAINED[name]
    with tempfile.TemporaryDirectory() as folder:
        command(
            "train", experiment, "--folder", f"{folder}/run", *settings(*changes, *LONG),
            kernels=kernels,
        )  # fmt: skip
        return weights_hash(Path(folder) / "run")


def machine() -> str:
    """What the last bits of a result depend on: processor, compiler and torch."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    processor = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "")
    flags = next((x for x in lines if x.startswith("flags")), "")
    compiler = subprocess.run(["cc", "--version"], capture_output=True, text=True).stdout
    known = [processor or platform.processor(), hashlib.sha256(flags.encode()).hexdigest()[:8]]
    return "; ".join([*known, compiler.splitlines()[0] if compiler else "", torch.__version__])


def make_runs() -> None:
    for name in ("nbody_data", "artery_data", "nbody_run", "artery_run", "sweep"):
        shutil.rmtree(HERE / name, ignore_errors=True)
    command(
        "data",
        "nbody",
        "--folder",
        "nbody_data",
        "--train",
        "64",
        "--others",
        "16",
        "--workers",
        "1",
    )
    source = "../arteries/fixture"
    command("data", "arteries", "--folder", "artery_data", "--source", source, "--workers", "1")
    command("train", "nbody", "--folder", "nbody_run", *settings(*NBODY, *OFTEN))
    command("train", "arteries", "--folder", "artery_run", *settings(*ARTERIES, *OFTEN))
    command("sweep", "recipe.toml", "--folder", "sweep")
    for lock in HERE.rglob(".lock"):
        lock.unlink()


def make_hashes() -> None:
    file = HERE / "hashes.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    known[machine()] = {
        name: {
            kind: trained_hash(name, "" if kind == "fused" else kind) for kind in ("fused", "plain")
        }
        for name in TRAINED
    }
    file.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    {"runs": make_runs, "hashes": make_hashes}[sys.argv[1]]()

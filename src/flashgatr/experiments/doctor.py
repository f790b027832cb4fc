"""`flashgatr doctor`: installed packages, kernels in use, and the equivariance error here."""

from __future__ import annotations

import importlib.metadata
import platform

import torch

from .. import GATr, __version__, embed_point
from ..functional import attention
from ..kernels import paths
from ..testing import equivariance_error
from .results import machine

PACKAGES = (
    "safetensors", "numpy", "scipy", "h5py", "matplotlib", "typer", "rich", "potpourri3d", "mujoco",
    "pybullet", "gymnasium", "tensorboard", "huggingface-hub", "e3nn", "torch-geometric", "triton",
)  # fmt: skip
LIMITS = {torch.float64: 1e-12, torch.float32: 2e-5}
"""Largest equivariance errors of a working installation."""


def examine() -> tuple[list[tuple[str, str]], bool]:
    """Rows (item, finding), and whether the errors are within their limits."""
    rows = [
        ("flashgatr", __version__),
        ("python", platform.python_version()),
        ("torch", torch.__version__),
        ("device", machine()),
        *_paths(),
        *((name, _version(name)) for name in PACKAGES),
    ]
    healthy = True
    torch.manual_seed(0)
    net = GATr(
        in_mv_channels=1, out_mv_channels=1, out_s_channels=2, hidden_mv_channels=8,
        hidden_s_channels=16, num_blocks=4, num_heads=4,
    )  # fmt: skip
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    mv = embed_point(torch.randn(2, 8, 1, 3))
    for dtype, limit in LIMITS.items():
        error = equivariance_error(net.to(device), mv.to(device), dtype=dtype)
        fine = error <= limit
        healthy &= fine
        name = str(dtype).removeprefix("torch.")
        verdict = "fine" if fine else f"TOO LARGE, expected at most {limit:.0e}"
        rows.append((f"equivariance error, {name}", f"{error:.1e} ({verdict})"))
    return rows, healthy


def _paths() -> list[tuple[str, str]]:
    """Which kernels and which attention each available device uses."""
    found = []
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    for device in devices:
        weight = torch.zeros((), device=device)
        obstacle = paths.obstacle(weight, weight, 1)
        kernels = {"cpu": "fused, C", "cuda": "fused, Triton"}[device]
        found.append(
            (f"kernels on {device}", kernels if obstacle is None else f"plain: {obstacle}")
        )
    if "cuda" in devices:
        q = torch.zeros(1, 2, 1, 8, device="cuda", dtype=torch.bfloat16)
        fits = attention.cudnn_fits(q, q, q)
        found.append(("attention on cuda, 16 bits", "cuDNN" if fits else "as torch chooses"))
    return found


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
